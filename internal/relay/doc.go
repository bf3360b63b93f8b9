// Package relay carries HTTP/1.1 between this process and an upstream server,
// and hands what comes back to a fasthttp client.
//
// Upstream side: a Pool keeps connections to one Target; Pool.Send writes a
// request, Exchange.ReadHead and Exchange.Next (or Read) bring the response.
// Client side: Reply streams a response into fasthttp, Watcher tells when a
// client has left, AppendForwardHeaders and CopyHeaders move header fields.
//
// Parsing is separate from I/O: head and chunked are push-style state
// machines that accept any split of the input and never touch a socket, so a
// readiness loop over raw file descriptors can drive them as well as the
// blocking reads of this package do.
package relay
