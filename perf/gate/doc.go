// Package gate refuses changes that make the router more expensive, or its choice of nodes worse.
// The gates' limits are tight for figures that do not depend on the machine's speed: allocations
// and system calls of a running router per request and per token, the index's memory per block, and
// missed reuse in simulated fleets. The gates' limits are wide for CPU time. CPU time is only a
// ratio to a reference in the same run, and is measured again before a gate fails. The package does
// not use wall-clock time.
package gate
