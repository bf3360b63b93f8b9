// Package realengine proves the router against real inference engines: two
// llama.cpp servers, or two vLLM servers on the CPU, each with a tiny random
// model that is made on the spot; and the cache daemon, in which the vLLM
// servers keep their blocks. It holds tests only; run.sh installs the
// engines and runs them.
package realengine
