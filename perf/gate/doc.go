// Package gate refuses changes that make the router more expensive, or its choice of nodes worse.
// It is tight on what does not depend on the machine's speed: allocations and system calls of a
// running router per request and per token, the index's memory per block, and how much reuse
// simulated fleets miss. It is wide on CPU time, which it takes only as a ratio to a reference in
// the same run, and measures again before it fails. Wall time is not looked at.
package gate
