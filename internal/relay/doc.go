// Package relay carries HTTP/1.1 between this process and an upstream server, and passes responses
// on to a fasthttp client.
//
// Upstream side: a Pool keeps connections to one Target. Pool.Send writes a request.
// Exchange.ReadHead and Exchange.Next (or Read) read the response. Client side: Reply streams a
// response into fasthttp. Watcher reports that a client has left. AppendForwardHeaders and
// CopyHeaders copy header fields.
//
// Parsing is separate from I/O: head, chunked and sse.Filter are push-style state machines that
// accept any split of the input and never touch a socket. Goroutines with blocking reads and Loops
// drive these parsers.
//
// # The answer's place
//
// An answer goes to a client, or into memory of this process. Reply begins the client's response
// once: it has one status, one header and one body. The response's Follower decides about the body.
// The Follower sees each event of an event stream and decides whether the client gets the event,
// nothing, or other events. The Follower can end a source early. When a source has ended or failed,
// the Follower may ask for another one, whose events follow in the same body. So a source can be
// replaced between any two events. Capture reads an answer into memory, with the same parsing and
// the same decision about each event. Sift reads the beginning of an answer, and leaves the answer
// to another reader.
//
// The relay does not know why sources follow one another. The relay returns the connection of a
// source to its pool before it asks for the next source. Deadlines and cancellation apply to the
// present source. The client is watched all the time, even while there is no source. An unfinished
// event of a failed source does not reach the client, unless it is too long to be held back
// (sse.MaxEventBytes). A blank line comes between two sources if an event was not closed.
//
// # Loops
//
// Event streams are many, long and made of small pieces. Most of a piece's cost is system calls and
// waking a goroutine. Loops (Linux only) relay event streams on a few threads, each around one
// epoll instance, without a goroutine per stream. One piece costs one recv and one send. All pieces
// that are ready at one moment share an epoll_wait and a reading of the clock. No piece waits for
// later pieces.
//
// A connection is parked when it is given to a loop. Once the head of the answer is known, Reply
// takes the client's connection from fasthttp (Hijack) and the upstream's connection from its
// Exchange. Both sockets leave the runtime's poller: their descriptors are duplicated, and the
// originals closed. The upstream's connection returns to its Pool when its source has ended. The
// client's connection waits in the loop for its next request, without a goroutine. With the first
// byte of that request the connection returns to the server (Parking.Serve). Bytes of a pipelined
// request that fasthttp has read already go with the connection.
//
// Between two sources the stream stays in its loop, with only the client's socket. The loop sends
// unsent bytes, and notices if the client leaves or does not read. Between two sources,
// Follower.Next runs on a goroutine. The connection of the new source is parked in the same loop,
// unless the source has been read to its end already. If the connection cannot be parked, the
// source counts as failed.
//
// A connection that has been idle on its goroutine for a while can be parked too (Parking.Park). A
// parked idle connection costs about a kilobyte.
//
// A stream stays with its goroutine, for all its sources, if its client uses TLS or HTTP/1.0, if
// its first source has been read to its end already, or if there is no Parking. TLS towards the
// upstream works in a loop: crypto/tls reads from a connection that returns an error instead of
// blocking, and continues later.
//
// Bounds and fairness: the upstream is not read while the client's socket has not taken all earlier
// bytes. So for a client that does not read, the loop holds the result of one read (turnBytes, 32
// KiB), or one longer event (at most sse.MaxEventBytes), or the bytes that Sift kept, and the bytes
// that its Follower adds. The kernel's buffers hold further bytes. A client that does not read is
// cut after ReplyOptions.SlowReader. In one turn of its loop a stream gets one read, and must queue
// for the next one. Deadlines are on a timing wheel of 10 ms. LoopsOptions.Lag gets the length of
// each turn. No lock is taken for a piece.
//
// A failure on either side ends one stream, in the same ways and with the same Outcome as on a
// goroutine. Other work (returning connections, Follower.Next, Follower.Done) runs on short-lived
// goroutines, at most one for each stream.
package relay
