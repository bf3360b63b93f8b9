// Package disturb measures what the kernel's signals are worth: it replays a trace through a router
// over several nodes, of which one shares its host's CPUs with hogs and one is reached over a path
// that loses packets, with and without the signals in turn.
//
// Each node is a network namespace with a simulated engine and its agent, in a control group of its
// own with the same share of CPU; the router, etcd and the load are in another namespace. All of it
// are the real programs. The engines need CPU time for each step (cgn-ctl sim --step-cpu), as real
// ones do, and the hogs run in the group of their node, so that this node's steps take longer and
// no other's. Linux only, and for root.
package disturb
