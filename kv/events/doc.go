// Package events follows the KV cache events of an inference engine. It reports which blocks of 16
// tokens, by their digests, are in which tier of the engine.
//
// Engines (vLLM, SGLang) publish batches of events over ZeroMQ: frames of topic, sequence number
// and a msgpack payload. The payload lists the blocks that the engine has stored, with their
// tokens, and the blocks that it has removed. A Follower subscribes to the batches, and asks for
// missed batches on the engine's replay socket. It computes digests from the tokens (kv/block), and
// passes reports to a Sink: the Kv.Report of the host's cgn-kvcached, or a kv/residency index of
// the same process.
//
// # What is known, and when it is not
//
// A Follower's knowledge has an epoch. A new epoch begins empty. It begins when missed batches are
// not in the replay, when a batch is unreadable, when the engine's model has another name, or when
// the publisher is new. A new publisher has numbers that go back, or does not know the last applied
// batch. A silent publisher is pinged, so a path that drops everything counts as a broken
// connection within 5 s (silence.go). After Options.Trust without a connection the engine counts as
// one without reports, not as empty. Blocks from before the first available batch are unknown. They
// count as absent until the engine stores them again.
//
// # Bounds
//
// There is no queue of batches. One goroutine reads, decodes and applies. Unread batches wait in
// the publisher, which drops batches beyond its high-water mark; the Follower then sees a gap. The
// knowledge has at most Options.MaxBlocks blocks; further blocks are counted and left out.
// Unreported changes have at most maxPending digests. Further changes are counted and dropped while
// the sink takes no reports. A snapshot replaces them once the sink takes reports again.
//
// # ZeroMQ
//
// The package implements the parts of ZMTP 3 that it needs in 350 lines: NULL, SUB, DEALER and
// PING. It checks every length before it allocates. go-zeromq/zmq4 allocates for any length that a
// frame claims, and starts goroutines of its own. Tests use zmq4 as the peer.
package events
