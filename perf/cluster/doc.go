// Package cluster simulates a fleet in virtual time: the router's own choice of nodes over engines
// that are models.
//
// Real are the policy, the prefix index with its feedback and lifetimes, the fleet's snapshot with
// its counts of requests in flight, the prefill that waits, admission, and the dispatcher's pick
// (leg.Rehearsal); of the engine the batch, the block-level LRU cache and the cost of a step
// (engine.Model). The router is told of every first token. Bytes, sockets, retries, faults and the
// network's delay are left out, and nobody gives up. Every request is streamed, comes once, at its
// time, and is answered or refused once.
//
// One goroutine goes from event to event, so that an hour of a fleet's traffic takes seconds, and
// equal configurations give equal results on every machine, to the last digit.
//
// # Blocks
//
// A trace tells prompts apart by blocks of 512 tokens, so that is the engines' block here; the
// unfinished one at a prompt's end is never found again, nor are answers. The index sees every such
// block as 32 of its own, as it would the text. The keys of both cover all blocks before.
//
// # Load
//
// The spacing of arrivals is the trace's, divided by Speed. Search finds the speed at which a given
// mode keeps the engines' prefill busy for a given share of the time, so that modes are compared
// under the same, known load. A Burst has its own times.
package cluster
