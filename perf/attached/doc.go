// Package attached measures what the BPF programs cost while they are attached: CPU time per
// request and per token of a router, its engines and its clients on this host, in pairs with and
// without them, and the programs' own run times.
package attached
