// Package disturb measures the benefit of the kernel's signals. The package replays a trace through
// a router over several nodes, with and without the signals in turn. One node shares its CPUs with
// hogs, and the path to another loses packets.
//
// Each node is a network namespace with a simulated engine and its agent, in a control group of its
// own. All nodes have the same share of CPU. The router, etcd and the load are in another
// namespace. The router, the agents and etcd are the real programs. The engines need CPU time for
// each step (cgn-ctl sim --step-cpu), as real ones do. The hogs run in the group of their node, so
// that only this node's steps take longer. The package runs on Linux only, as root.
package disturb
