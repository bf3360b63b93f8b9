// Package realengine tests the router with real inference engines: two llama.cpp servers, or two
// vLLM servers on the CPU. Each server serves a tiny random model that is made for the test. The
// package also tests the cache daemon, in which the vLLM servers keep their blocks. The package
// contains only tests; run.sh installs the engines and runs them.
package realengine
