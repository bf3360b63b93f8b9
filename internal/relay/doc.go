// Package relay carries HTTP/1.1 between this process and an upstream server,
// and hands what comes back to a fasthttp client.
//
// Upstream side: a Pool keeps connections to one Target; Pool.Send writes a
// request, Exchange.ReadHead and Exchange.Next (or Read) bring the response.
// Client side: Reply streams a response into fasthttp, Watcher tells when a
// client has left, AppendForwardHeaders and CopyHeaders move header fields.
//
// Parsing is separate from I/O: head, chunked and sse.Filter are push-style
// state machines that accept any split of the input and never touch a socket.
// Two things drive them: goroutines with blocking reads, and Loops.
//
// # The answer's place
//
// An answer goes to a client, or into memory of this process. Reply opens the
// client's place once: it has one status, one header and one body. Its Follower
// decides about the body. It sees each event of an event stream and appends what
// the client gets in its place: the event, nothing, or other events. It may have
// enough of a source before that has ended. When a source has ended, well or
// not, it may ask for another one, whose events follow in the same body. So a
// source can be replaced between any two events. Capture reads an answer into
// memory, with the same parsing and the same decision about each event.
//
// The relay does not know why sources follow one another. It sees to the rest:
// the connection of a source is back in its pool before the next one is asked
// for, deadlines and cancellation are those of the source that is read, and the
// client is watched all the time, also while there is no source. An event that a
// failed source has left unfinished does not reach the client, unless it is too
// long to be held back (sse.MaxEventBytes); a blank line comes between sources
// where an event was not closed.
//
// # Loops
//
// Event streams are many, long and made of small pieces: a piece costs mostly
// system calls and waking somebody up. Loops (Linux only) relay them on a few
// threads, each around one epoll instance, without a goroutine per stream. One
// piece costs one recv and one send; epoll_wait and the clock are shared by all
// that is ready at that moment. Nothing waits for more to come.
//
// A connection is parked: Reply takes the client's from fasthttp (Hijack) once
// the head of the answer is known, and the upstream's from its Exchange; both
// sockets leave the runtime's poller (a duplicate descriptor is made and the
// first one closed). After its source the upstream's goes back to its Pool. The
// client's waits in the loop for its next request, which costs no goroutine
// either, and goes back to the server with the first byte of that
// (Parking.Serve). Bytes of a pipelined request that fasthttp has read already
// travel along.
//
// Between two sources the stream stays in its loop, with the client's socket
// alone: unsent bytes are sent, and the loop notices if the client leaves or
// does not read. Follower.Next runs on a goroutine meanwhile. The connection of
// the source that it brings is parked in the same loop; a source that has come to
// its end already needs none. One that cannot be parked counts as failed.
//
// A connection that has been idle for a while on its goroutine can be brought to
// the loop in the same way (Parking.Park): then it costs about a kilobyte.
//
// A stream stays with its goroutine, for all its sources, if it speaks TLS with
// the client, is for an HTTP/1.0 client, has already come to its first source's
// end, or if there is no Parking. TLS towards the upstream is the loop's:
// crypto/tls reads from a connection that answers "not now" instead of waiting,
// and goes on from there later.
//
// Bounds and fairness: the upstream is not read while anything read before has
// not been taken by the client's socket. So a client that does not read holds
// the result of one read, turnBytes (32 KiB), or one event if that is longer (at
// most sse.MaxEventBytes), and what its Follower appends to that, besides what
// the kernel holds for it; it is cut after ReplyOptions.SlowReader. In one turn of
// its loop a stream gets one read, and has to queue for the next one. Deadlines
// are on a timing wheel of 10 ms. LoopsOptions.Lag is told how long turns take.
// No lock is taken for a piece.
//
// A failure on either side ends one stream, in the same ways and with the same
// Outcome as on a goroutine. Work apart from the relaying (giving connections
// back, Follower.Next, Follower.Done) happens on short-lived goroutines, at most
// one for each stream.
package relay
