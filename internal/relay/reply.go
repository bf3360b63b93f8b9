package relay

import (
	"errors"
	"io"
	"slices"
	"time"

	"github.com/valyala/fasthttp"
)

const (
	wholeBodyBytes   = 256 << 10 // bodies up to this size are read before the client is answered
	http10BodyBytes  = 8 << 20   // the same for HTTP/1.0 clients when the length is not known
	keptEventBytes   = 16 << 10  // larger buffers are not kept between streams
	defaultSlowWrite = 30 * time.Second
)

// ErrClientTooOld is returned by Reply for a body of unknown length that is
// longer than is kept for an HTTP/1.0 client. The upstream is not to blame.
var ErrClientTooOld = errors.New("response of unknown length is too long for an HTTP/1.0 client")

// ReplyOptions say how Reply treats the client.
type ReplyOptions struct {
	// SlowReader is how long one write, of up to 32 KiB, may take; default 30 s.
	SlowReader time.Duration
	Follower   Follower // may be nil
	// MustClose says that streams of this API have a closing event
	// (sse.Event.Closes): a source that ends without has been cut, however it is
	// framed. It is always so for streams that end with the connection.
	MustClose bool
	// Stop, if set, is called before the last exchange is closed: what
	// Watcher.Watch returned.
	Stop func()
	// Parking, if set, lets Loops relay an event stream.
	Parking *Parking
	// Parked, if set, is called if they do, before anything else of the Follower:
	// what belongs to ctx and its request is not valid afterwards.
	Parked func()
}

// Reply answers ctx with the body of e, whose head has been read; the caller
// has set status and header fields (CopyHeaders) before. A body of up to
// 256 KiB is read before anything is sent; another one is handed to fasthttp
// as a stream that it reads after the handler has returned. Every piece is sent
// as it comes; event streams go out in whole events, and o.Follower may have
// other sources follow e. An HTTP/1.0 client, who knows no chunks, gets a body
// of unknown length whole, up to 8 MiB.
//
// An event stream that is ended by nothing but the end of the connection must
// have had an event that closes it (sse.Event.Closes): the crash of a server
// looks the same as the end of such a stream, so without one it has failed.
//
// With o.Parking an event stream is relayed by Loops instead: see the package's
// text.
//
// On success e belongs to Reply, which closes it. An error means that the body
// could not be read and nothing has been sent: e is still the caller's, who
// may try elsewhere, and neither Stop nor a method of the Follower is called.
// It is an *Error about the upstream, or ErrClientTooOld, for which no other
// upstream has a remedy.
//
// A client that cannot be told of a failure (any body but an event stream) has
// its connection cut, never a clean-looking end. The server should have a
// WriteTimeout: it bounds the writing of everything but streams.
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

// prepare reads ahead what is to be read ahead and returns the length for
// fasthttp, -1 for a body of unknown length. The follower sees nothing of a
// body that fails here.
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

// prepareWhole reads everything for a client that cannot take a body without a
// length: the first source, and what follows it once that is there to its end.
// The length of a response that has failed later is longer than what there is,
// so that the client notices.
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

// readAhead reads the body into s.whole, as it came, up to its end or limit bytes.
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

// showAhead takes what has been read ahead, of a body that is no event stream,
// for the beginning of the response.
func (s *relayedReply) showAhead(complete bool) {
	if s.ahead = *s.whole; complete {
		s.phase = ended
	}
	if s.follower != nil {
		s.follower.Body(s.ahead, complete)
	}
}

// gather brings the whole response, whose first source is first, within what is
// kept for an HTTP/1.0 client.
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
