// Package attached measures the cost of the attached BPF programs: the CPU time per request and per
// token of a router, its engines and its clients on this host, in pairs with and without the
// programs, and the programs' own run times.
package attached
