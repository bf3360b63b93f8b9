package relay

import (
	"errors"
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

// ErrClientTooOld is what Reply returns for a body of unknown length that is
// longer than what is kept for an HTTP/1.0 client. The upstream is not to blame.
var ErrClientTooOld = errors.New("response of unknown length is too long for an HTTP/1.0 client")

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
// Body and Tail never after Done. Byte slices are valid during the call. They
// should be quick: other streams wait meanwhile.
type Observer interface {
	// Event is called for each event of an event stream before it is sent;
	// false leaves it out. It was read at that time, together with others perhaps.
	Event(e sse.Event, at time.Time) (keep bool)
	// Body is called for each piece of any other body before it is sent. A
	// body of up to 256 KiB is one piece, and whole.
	Body(piece []byte, whole bool)
	// Tail appends to dst the events that tell the client that the stream has
	// failed, blank line included. They are sent, and the response then ends
	// as HTTP demands, so that the client's library gets to see them. Without
	// any, the connection is cut.
	Tail(dst []byte, o Outcome, err error) []byte
	// Done is called exactly once, last, when the exchange has been closed.
	// err is the cause of an outcome other than Complete, sent the bytes of the
	// body, without chunks' size lines, that were handed to the client's connection.
	Done(o Outcome, sent int64, err error)
}

// ReplyOptions say how Reply treats the client.
type ReplyOptions struct {
	// SlowReader is how long one write, of up to 32 KiB, may take; default 30 s.
	SlowReader time.Duration
	Observer   Observer // may be nil
	// MustClose says that streams of this API have a closing event
	// (sse.Event.Closes): one that ends without has been cut, however it is
	// framed. It is always so for streams that end with the connection.
	MustClose bool
	// Stop, if set, is called before the exchange is closed: what
	// Watcher.Watch returned.
	Stop func()
	// Lending, if set, lets Loops relay an event stream.
	Lending *Lending
	// Lent, if set, is called if they do, before anything else of the Observer:
	// what belongs to ctx and its request is not valid afterwards.
	Lent func()
}

// Reply answers ctx with the body of e, whose head has been read; the caller
// has set status and header fields (CopyHeaders) before. A body of up to
// 256 KiB is read before anything is sent; another one is handed to fasthttp
// as a stream that it reads after the handler has returned. Every piece is sent
// as it comes; event streams go out in whole events. An HTTP/1.0 client, who
// knows no chunks, gets a body of unknown length whole, up to 8 MiB.
//
// An event stream that is ended by nothing but the end of the connection must
// have had an event that closes it (sse.Event.Closes): the crash of a server
// looks the same as the end of such a stream, so without one it has failed.
//
// With o.Lending an event stream is relayed by Loops instead: see the package's
// text.
//
// On success e belongs to Reply, which closes it. An error means that the body
// could not be read and nothing has been sent: e is still the caller's, who
// may try elsewhere, and neither Stop nor a method of the Observer is called.
// It is an *Error about the upstream, or ErrClientTooOld, for which no other
// upstream has a remedy.
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
	s.mustClose = s.events && (o.MustClose || e.ContentLength() == lengthUntilClose)
	length, err := s.prepare(!ctx.Request.Header.IsHTTP11())
	if err != nil {
		s.recycle()
		return err
	}
	if length < 0 && s.lend(ctx, &o) {
		return nil
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
// fasthttp, -1 for a body of unknown length. The observer sees nothing of a
// body that fails here.
func (s *stream) prepare(http10 bool) (length int, err error) {
	n, limit := s.e.ContentLength(), wholeBodyBytes
	old := http10 && (n < 0 || s.events)
	switch {
	case old:
		limit = http10BodyBytes
	case s.events:
		return -1, nil
	case n > wholeBodyBytes:
		return int(n), nil
	}
	if err := s.readAhead(limit); err != nil {
		return 0, err
	}
	if old && !s.complete {
		return 0, ErrClientTooOld
	}
	if err := s.show(); err != nil {
		return 0, err
	}
	if s.ahead = *s.whole; s.complete {
		return len(*s.whole), nil
	}
	return -1, nil
}

// readAhead reads the body, as it came, up to its end or limit bytes.
func (s *stream) readAhead(limit int) (err error) {
	s.whole = wholeBodies.Get().(*[]byte)
	b := slices.Grow((*s.whole)[:0], int(min(max(0, s.e.ContentLength()), int64(limit))))
	for err == nil && len(b) < limit {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		var n int
		n, err = s.e.Read(b[len(b):min(cap(b), limit)])
		b = b[:len(b)+n]
	}
	*s.whole = b
	if s.complete = err == io.EOF || s.e.drained(); s.complete {
		return nil
	}
	return err
}

// show lets the observer see what has been read ahead, and leaves out the
// events that it does not keep.
func (s *stream) show() error {
	b := *s.whole
	switch {
	case s.events && s.e.ContentLength() == lengthUntilClose && !closes(b):
		return newError(PhaseBody, io.ErrUnexpectedEOF)
	case s.events:
		s.now = time.Now()
		b = s.filter.Feed(b, b[:0], s.keep)
		*s.whole = append(b, s.filter.Pending()...)
	case s.observer != nil:
		s.observer.Body(b, s.complete)
	}
	return nil
}

// closes is stream.end for a stream that is there as a whole.
func closes(events []byte) bool {
	var s sse.Scanner
	closed := false
	s.Feed(events, func(e sse.Event) { closed = closed || e.Closes() })
	last, ok := s.Last()
	return closed || s.Skipped() > 0 || ok && last.Closes()
}
