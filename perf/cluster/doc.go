// Package cluster simulates a fleet in virtual time. The package uses the router's own code to pick
// nodes, with models of engines.
//
// These parts of the router are real: the policy, the prefix index with its feedback and lifetimes,
// the fleet's snapshot with its counts of requests in flight, pending prefill, admission, and the
// dispatcher's pick (leg.Rehearsal). The engine's model has the batch, the block-level LRU cache
// and the cost of a step (engine.Model). The router is told of every first token. There are no
// bytes, sockets, retries, faults or network delays, and no client gives up. Every request is
// streamed, comes once, at its time, and is answered or refused once.
//
// One goroutine processes all events in order, so an hour of a fleet's traffic takes seconds. Equal
// configurations give exactly equal results on every machine.
//
// # Blocks
//
// A trace distinguishes prompts by blocks of 512 tokens, so engines have blocks of this size here.
// The incomplete block at a prompt's end is never found again, and neither are answers. The index
// sees every such block as 32 blocks of its own, as it would see the text. A key of either block
// size covers all earlier blocks.
//
// # Load
//
// The spacing of arrivals is the trace's, divided by Speed. Search finds the speed at which a given
// mode keeps the engines' prefill busy for a given share of the time. So modes are compared under
// the same known load. A Burst sets its own arrival times.
package cluster
