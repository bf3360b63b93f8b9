// Package cluster simulates a fleet in virtual time. The package uses the router's own code to pick
// nodes, with models of engines.
//
// These parts of the router are real: the policy, the prefix index with its feedback and lifetimes,
// the fleet's snapshot with its counts of requests in flight, pending prefill, admission, and the
// dispatcher's pick (leg.Rehearsal). The engine's model has the batch, the block-level LRU cache
// and the cost of a step (engine.Model). The router is told of every token. There are no bytes,
// sockets, retries, faults or network delays, and no client gives up. Every request is streamed,
// comes once, at its time, and is answered or refused once.
//
// One goroutine processes all events of a simulation in order, so an hour of a fleet's traffic
// takes seconds. Equal configurations give exactly equal results on every machine.
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
//
// # Nodes, telemetry and routers
//
// Config.Speeds gives nodes different speeds, and Config.Slow makes a node slower for some time.
// With Config.Telemetry a router hears of every engine's requests, queue and KV blocks as from an
// agent's heartbeats: now and then, and late. With Config.Routers several routers share the nodes,
// and tell each other nothing.
//
// # Prefill and decode on two nodes
//
// With Config.Roles every node has a connector, and the router may have a prompt computed by
// another node than the one that answers (leg.Rehearsal.Prefill). That node makes one token, and
// keeps the prompt's blocks until they are read. Then the answering node gets the request with all
// blocks, and computes no prompt tokens. No hand-over fails. JudgeDisagg compares fleets with fixed
// roles with fleets of role both.
//
// # Caches of hosts
//
// With Config.Hosts every node's host has a cache of blocks, and Hosts.Told says what the routers
// know of it. The routers are told exactly and at once. A transfer slows no other one down.
// JudgeWarm compares what they gain by it.
//
// # Judging
//
// Judge compares modes under several kinds of Traffic, at loads and over seeds. A kind makes its
// arrivals at any rate, while the pauses of its sessions stay the same. A load is a share of
// Traffic.Capacity, the rate that round robin holds without a growing queue. Seeds with which
// nothing was tuned show what a mode is worth.
//
// The engines of a judgement cost what a router's predictions may leave out. Prefill takes longer
// behind a long context. A decode step takes longer for each sequence and for each KV block that it
// reads. Prompts are computed in chunks, in steps shared with decoding. Requests that fill the KV
// memory push the youngest one out, which is computed again. The figures include the beginning of
// each trace, when caches are empty and nothing is learned.
//
// Each figure of a mode has its paired difference to the best other mode, with an interval of 95 %
// over the seeds. A mode is ahead or behind if the interval leaves out 0. The seeds of a recorded
// trace differ only in random choices and in what clients send, so their intervals say nothing of
// other traces. Windows of a trace do.
package cluster
