// Package events follows what an inference engine publishes about its KV cache, and reports it in
// the fleet's own terms: which blocks of 16 tokens, by their digests, are where in the engine.
//
// Engines (vLLM, SGLang) publish batches of events over ZeroMQ: frames of topic, sequence number
// and a msgpack payload that says which of the engine's blocks were stored, with their tokens, and
// which were removed. A Follower subscribes, asks for what it has missed on the engine's replay
// socket, computes digests from the tokens (kv/block) and hands reports to a Sink: the
// Kv.Report of the host's cgn-kvcached, or a kv/residency index of the same process.
//
// # What is known, and when it is not
//
// A Follower's knowledge has an epoch. It begins anew, with nothing, when batches are missing that
// the replay does not have, when a batch cannot be read, when the engine's model has another name,
// and when the publisher is another one than before: its numbers go back, or it does not know the
// last batch that was applied. A publisher that is silent is pinged, so that a path which drops
// everything counts as a broken connection within 5 s (silence.go). While there is no connection
// for longer than Options.Trust, the engine counts as one that reports nothing, not as one that has
// nothing. Blocks from before the first batch that could be had are not known, and count as absent
// until the engine stores them again.
//
// # Bounds
//
// There is no queue of batches: one goroutine reads, decodes and applies, and what it has no time
// for waits in the publisher, which drops beyond its own high-water mark; that is a gap. What is
// known takes at most Options.MaxBlocks; blocks beyond are left out and counted. Changes on their
// way to the sink take at most maxPending digests; where the sink stands still they are dropped,
// counted, and replaced by a snapshot of all that is known once it moves again.
//
// # ZeroMQ
//
// Of ZMTP 3 this needs NULL, SUB and DEALER, and PING, which are 350 lines here, with every length
// checked before memory is taken. go-zeromq/zmq4 takes memory for the length that a frame claims
// and starts goroutines of its own; tests use it as the other side.
package events
