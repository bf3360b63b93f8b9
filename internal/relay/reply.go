package relay

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	wholeBodyBytes   = 256 << 10 // bodies up to this size are read before the client gets an answer
	http10BodyBytes  = 8 << 20   // the same for HTTP/1.0 clients, for bodies of unknown length
	keptEventBytes   = 16 << 10  // larger buffers are not kept between streams
	defaultSlowWrite = 30 * time.Second
)

// ErrClientTooOld means that a body of unknown length is too long to be held for an HTTP/1.0
// client. The upstream is not at fault.
var ErrClientTooOld = errors.New("response of unknown length is too long for an HTTP/1.0 client")

// ReplyOptions say how Reply treats the client.
type ReplyOptions struct {
	// SlowReader is the time limit of one write of up to 32 KiB; default 30 s.
	SlowReader time.Duration
	Follower   Follower // may be nil
	// MustClose means that streams of this API have a closing event (sse.Event.Closes). A source
	// without a closing event then counts as cut, whatever its framing. A stream that ends with its
	// connection needs a closing event even without MustClose.
	MustClose bool
	// Stop, if set, is called before the last exchange is closed. The function that Watcher.Watch
	// returns can be Stop.
	Stop func()
	// Parking, if set, lets Loops relay an event stream.
	Parking *Parking
	// Parked, if set, is called when Loops take over the stream, before any method of the Follower.
	// After Parked, ctx and its request are no longer valid.
	Parked func()
}

// Reply answers ctx with the body of e. The head of e must have been read, and the caller must have
// set status and header fields (CopyHeaders). A body of up to 256 KiB is read before anything is
// sent. A longer body is a stream that fasthttp reads after the handler has returned. Every piece
// is sent as it comes. Event streams are sent in whole events, and o.Follower may let other sources
// follow e. An HTTP/1.0 client does not know chunks, so it gets a body of unknown length in one
// piece, up to 8 MiB.
//
// An event stream that ends with its connection must have had a closing event (sse.Event.Closes).
// Without a closing event the stream has failed, because a server's crash looks the same as the
// stream's end.
//
// With o.Parking an event stream is relayed by Loops instead; see the package's documentation.
//
// On success Reply owns e and closes it. An error means that the body could not be read and that
// nothing was sent. After an error the caller still owns e and may try another upstream. Neither
// Stop nor a method of the Follower is called. The error is an *Error about the upstream, or
// ErrClientTooOld. Another upstream does not help against ErrClientTooOld.
//
// A failure can be reported to the client only in an event stream. With any other body the client's
// connection is cut, so that the end never looks clean. The server should have a WriteTimeout,
// which bounds all writing except the writing of streams.
func Reply(ctx *fasthttp.RequestCtx, e *Exchange, o ReplyOptions) error {
	s := streams.Get().(*relayedReply)
	s.follower, s.stop, s.must, s.events = o.Follower, o.Stop, o.MustClose, e.IsSSE()
	if s.client.conn, s.client.slow = ctx.Conn(), o.SlowReader; s.client.slow <= 0 {
		s.client.slow = defaultSlowWrite
	}
	s.source.begin(e, s.must)
	length, err := s.prepare(!ctx.Request.Header.IsHTTP11())
	if err != nil {
		s.recycle()
		return err
	}
	if length < 0 && s.park(ctx, &o) {
		return nil
	}
	ctx.Response.ImmediateHeaderFlush = s.events && length < 0 && len(e.Held()) == 0
	s.client.bound()
	if s.phase == ended {
		s.closeUpstream()
	}
	ctx.Response.SetBodyStream(s, length)
	return nil
}

// prepare reads a part of the body ahead and returns the length for fasthttp; -1: unknown. The
// follower gets nothing of a body that fails here.
func (s *relayedReply) prepare(http10 bool) (length int, err error) {
	n := s.source.e.ContentLength()
	switch {
	case http10 && (n < 0 || s.events):
		return s.prepareWhole()
	case s.events:
		return -1, nil
	case n > wholeBodyBytes:
		return int(n), nil
	}
	complete, err := s.readAhead(wholeBodyBytes)
	if err != nil {
		return 0, err
	}
	s.showAhead(complete)
	if !complete {
		return -1, nil
	}
	return len(s.ahead), nil
}

// prepareWhole reads the whole body for a client that needs its length. prepareWhole reads the
// first source to its end, and then the following ones. For a response that fails later,
// prepareWhole returns more than the actual length, so that the client notices.
func (s *relayedReply) prepareWhole() (length int, err error) {
	complete, err := s.readAhead(http10BodyBytes)
	switch {
	case err != nil:
		return 0, err
	case !complete:
		return 0, ErrClientTooOld
	case !s.events:
		s.showAhead(true)
		return len(s.ahead), nil
	case s.source.closing == mustTell && !closesAnywhere(*s.whole):
		return 0, newError(PhaseBody, io.ErrUnexpectedEOF)
	}
	if s.ahead = s.gather(*s.whole); s.phase == cut {
		return len(s.ahead) + 1, nil
	}
	return len(s.ahead), nil
}

// readAhead reads the unparsed body into s.whole, up to its end or limit bytes.
func (s *relayedReply) readAhead(limit int) (complete bool, err error) {
	e := s.source.e
	s.whole = wholeBodies.Get().(*[]byte)
	b := slices.Grow((*s.whole)[:0], int(min(max(0, e.ContentLength()), int64(limit))))
	for err == nil && len(b) < limit {
		if len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
		var n int
		n, err = e.Read(b[len(b):min(cap(b), limit)])
		b = b[:len(b)+n]
	}
	if *s.whole = b; err == io.EOF || e.drained() {
		return true, nil
	}
	return false, err
}

// showAhead makes the bytes read ahead the beginning of the response. The body is not an event
// stream.
func (s *relayedReply) showAhead(complete bool) {
	if s.ahead = *s.whole; complete {
		s.phase = ended
	}
	if s.follower != nil {
		s.follower.Body(s.ahead, complete)
	}
}

// gather returns the whole response, within the limit for an HTTP/1.0 client. first is the body of
// its first source.
func (s *relayedReply) gather(first []byte) []byte {
	s.now = time.Now()
	out := s.pass(first, nil)
	for {
		s.release()
		switch {
		case s.phase != reading && s.phase != awaiting:
			return out
		case len(out) > http10BodyBytes:
			if out = s.conclude(out, UpstreamFailed, ErrClientTooOld, s.source.filter.Torn()); s.phase == awaiting {
				s.fail(UpstreamFailed, ErrClientTooOld)
				s.phase = cut
			}
		default:
			out = s.fill(out)
		}
	}
}
