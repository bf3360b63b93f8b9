package relay

import (
	"io"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/valyala/fasthttp"
)

const (
	wholeBodyBytes   = 256 << 10 // bodies up to this size are read before the client is answered
	http10BodyBytes  = 8 << 20   // the same for HTTP/1.0 clients when the length is not known
	keptEventBytes   = 16 << 10  // larger buffers are not kept between streams
	defaultSlowWrite = 30 * time.Second
)

// Outcome is how a response to a client ended.
type Outcome uint8

// Outcomes of a response.
const (
	Complete       Outcome = iota // the client was sent all of it
	ClientGone                    // the client left, or its connection broke
	SlowReader                    // the client did not read for ReplyOptions.SlowReader
	UpstreamFailed                // the upstream broke off or sent something malformed
	IdleTimeout                   // the upstream was silent for Exchange.SetIdleTimeout
	TotalTimeout                  // the time of Exchange.SetReadDeadline passed
)

var outcomeNames = [...]string{
	"complete", "client_gone", "slow_reader", "upstream_failed", "idle_timeout", "total_timeout",
}

func (o Outcome) String() string { return outcomeNames[o] }

// Observer follows one response. Its methods are called one at a time, Event,
// Body and Tail never after Done. Byte slices are valid during the call.
type Observer interface {
	// Event is called for each event of an event stream before it is sent;
	// false leaves it out.
	Event(e sse.Event) (keep bool)
	// Body is called for each piece of any other body before it is sent. A
	// body of up to 256 KiB is one piece, and whole.
	Body(piece []byte, whole bool)
	// Tail appends to dst the events that tell the client that the stream has
	// failed, blank line included. They are sent, and the response then ends
	// as HTTP demands, so that the client's library gets to see them. Without
	// any, the connection is cut.
	Tail(dst []byte, o Outcome, err error) []byte
	// Done is called exactly once, last, when the exchange has been closed.
	// err is the cause of an outcome other than Complete.
	Done(o Outcome, err error)
}

// ReplyOptions say how Reply treats the client.
type ReplyOptions struct {
	// SlowReader is how long one write, of up to 32 KiB, may take; default 30 s.
	SlowReader time.Duration
	Observer   Observer // may be nil
	// Stop, if set, is called before the exchange is closed: what
	// Watcher.Watch returned.
	Stop func()
}

// Reply answers ctx with the body of e, whose head has been read; the caller
// has set status and header fields (CopyHeaders) before. A body of up to
// 256 KiB is read before anything is sent; another one is handed to fasthttp
// as a stream that it reads after the handler has returned. Every piece is sent
// as it comes; event streams go out in whole events. An HTTP/1.0 client, who
// knows no chunks, gets a body of unknown length whole, up to 8 MiB.
//
// On success e belongs to Reply, which closes it. An error means that the body
// could not be read and nothing has been sent: e is still the caller's, who
// may try elsewhere, and neither Stop nor Done is called.
//
// A client that cannot be told of a failure (any body but an event stream) has
// its connection cut, never a clean-looking end. The server should have a
// WriteTimeout: it bounds the writing of everything but streams.
func Reply(ctx *fasthttp.RequestCtx, e *Exchange, o ReplyOptions) error {
	s := streams.Get().(*stream)
	s.e, s.observer, s.stop, s.client = e, o.Observer, o.Stop, ctx.Conn()
	if s.slow = o.SlowReader; s.slow <= 0 {
		s.slow = defaultSlowWrite
	}
	s.events = e.IsSSE()
	length, err := s.prepare(!ctx.Request.Header.IsHTTP11())
	if err != nil {
		s.recycle()
		return err
	}
	ctx.Response.ImmediateHeaderFlush = s.events && length < 0 && len(e.Held()) == 0
	s.bound()
	if s.complete {
		s.closeUpstream()
	}
	ctx.Response.SetBodyStream(s, length)
	return nil
}

// prepare reads ahead what is to be read ahead and returns the length for
// fasthttp, -1 for a body of unknown length.
func (s *stream) prepare(http10 bool) (length int, err error) {
	n := s.e.ContentLength()
	switch {
	case n < 0 && http10:
		if err = s.readAhead(http10BodyBytes); err == nil && !s.complete {
			err = newError(PhaseBody, errTooLongForHTTP10)
		}
	case !s.events && n <= wholeBodyBytes:
		err = s.readAhead(wholeBodyBytes)
	case !s.events:
		return int(n), nil
	}
	if err == nil && s.complete {
		return len(*s.whole), nil
	}
	return -1, err
}

const errTooLongForHTTP10 = protocolError("body of unknown length too long for an HTTP/1.0 client")

// readAhead reads the body up to its end or limit bytes.
func (s *stream) readAhead(limit int) (err error) {
	s.whole = wholeBodies.Get().(*[]byte)
	b := slices.Grow((*s.whole)[:0], int(max(0, s.e.ContentLength())))
	for err == nil && len(b) < limit {
		b, err = s.readMore(b, limit)
	}
	*s.whole, s.ahead = b, b
	s.complete = err == io.EOF || !s.events && s.e.drained()
	if err != nil && !s.complete {
		return err
	}
	if !s.events && s.observer != nil {
		s.observer.Body(b, s.complete)
	}
	return nil
}

// readMore appends what comes next: events through the filter, other bodies
// straight to where they stay.
func (s *stream) readMore(b []byte, limit int) ([]byte, error) {
	if s.events {
		piece, err := s.next()
		return append(b, piece...), err
	}
	if len(b) == cap(b) {
		b = append(b, 0)[:len(b)]
	}
	n, err := s.e.Read(b[len(b):min(cap(b), limit)])
	return b[:len(b)+n], err
}
