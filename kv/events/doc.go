// Package events follows the KV cache events of an inference engine. The package reports to the
// fleet which blocks of 16 tokens, by their digests, are in which tier of the engine.
//
// Engines (vLLM, SGLang) publish batches of events over ZeroMQ: frames of topic, sequence number
// and a msgpack payload. The payload lists the engine's stored blocks, with their tokens, and its
// removed blocks. A Follower subscribes to the batches. The Follower asks for missed batches on the
// engine's replay socket. The Follower computes digests from the tokens (kv/block). The Follower
// passes reports to a Sink: the Kv.Report of the host's cgn-kvcached, or a kv/residency index of
// the same process.
//
// # What is known, and when it is not
//
// A Follower's knowledge has an epoch. A new epoch begins empty when missing batches are not in the
// replay, or when a batch is unreadable. A new epoch also begins when the engine's model has
// another name, or when the publisher is new. A new publisher shows by numbers that go back, or by
// not knowing the last applied batch. A silent publisher is pinged, so a path that drops everything
// counts as a broken connection within 5 s (silence.go). After Options.Trust without a connection
// the engine counts as an engine without reports, not as an empty engine. Blocks from before the
// first available batch are unknown. The unknown blocks count as absent until the engine stores
// them again.
//
// # Bounds
//
// There is no queue of batches. One goroutine reads, decodes and applies. Unread batches wait in
// the publisher, which drops batches beyond its high-water mark; the Follower then sees a gap. The
// knowledge holds at most Options.MaxBlocks blocks; further blocks are left out and counted.
// Unreported changes take at most maxPending digests. While the sink takes nothing, further changes
// are dropped and counted. A snapshot replaces dropped changes once the sink takes reports again.
//
// # ZeroMQ
//
// The package implements the needed parts of ZMTP 3 in 350 lines: NULL, SUB, DEALER and PING. The
// package checks every length before it allocates. go-zeromq/zmq4 allocates for the length that a
// frame claims, and starts goroutines of its own. Tests use zmq4 as the peer.
package events
