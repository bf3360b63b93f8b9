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
// # Loops
//
// Event streams are many, long and made of small pieces: what a piece costs is
// system calls and waking somebody up. Loops (Linux only) relay them on a few
// threads, each around one epoll instance, without a goroutine per stream. One
// piece costs one recv and one send; epoll_wait and the clock are shared by all
// that is ready at that moment. Nothing waits for more to come.
//
// A connection is lent: Reply takes the client's from fasthttp (Hijack) once
// the head of the answer is known, and the upstream's from its Exchange; both
// sockets leave the runtime's poller (a duplicate descriptor is made and the
// first one closed). After the stream the upstream's goes back to its Pool. The
// client's waits in the loop for its next request, which costs no goroutine
// either, and goes back to the server with the first byte of that
// (Lending.Serve). What fasthttp has already read of a pipelined request
// travels along.
//
// A connection that has been idle for a while on its goroutine can be brought to
// the loop in the same way (Lending.Rest): then it costs about a kilobyte.
//
// A stream stays with its goroutine if it speaks TLS with the client, is for an
// HTTP/1.0 client, has already come to its end, or if there is no Lending. TLS
// towards the upstream is the loop's: crypto/tls reads from a connection that
// answers "not now" instead of waiting, which it takes up where it was.
//
// Bounds and fairness: the upstream is not read while anything read before has
// not been taken by the client's socket. So a client that does not read holds
// what came of one read, turnBytes (32 KiB), or one event if that is longer (at
// most sse.MaxEventBytes), besides what the kernel holds for it; it is cut after
// ReplyOptions.SlowReader. In one turn of its loop a stream gets one read, and
// has to queue for the next one. Deadlines are on a timing wheel of 10 ms. How
// long turns take is told to LoopsOptions.Lag. No lock is taken for a piece.
//
// Whatever goes wrong on either side ends one stream, in the same ways with the
// same Outcome as on a goroutine. What ends a stream apart from the relaying
// (giving connections back, Observer.Done) happens on a short-lived goroutine.
package relay
