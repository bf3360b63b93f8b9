package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// stream is a response body on its way from an Exchange to fasthttp, which
// calls WriteTo at most once and CloseWithError exactly once.
type stream struct {
	e        *Exchange // nil once closed
	observer Observer
	stop     func()
	client   net.Conn
	slow     time.Duration
	until    time.Time // write deadline in force

	events    bool
	filter    sse.Filter
	keep      func(sse.Event) bool // s.event, bound once
	now       time.Time            // when what is being looked at was read
	out       []byte               // events to be sent
	whole     *[]byte              // the body read ahead, or its beginning
	ahead     []byte               // what of it has not been sent
	complete  bool                 // nothing is left to be read from e
	mustClose bool                 // events that end without a closing one have been cut
	closed    bool                 // an event has come after which the stream may end
	unread    []byte               // of Read
	sent      int64                // bytes of the body handed on to the client's connection
	outcome   Outcome
	cause     error
}

var streams = sync.Pool{New: func() any {
	s := new(stream)
	s.keep = s.event
	return s
}}

var wholeBodies = sync.Pool{New: func() any {
	b := make([]byte, 0, largeBufferBytes)
	return &b
}}

// errClientLeft ends the connection of a client that is gone. fasthttp does
// not log errors with these words.
var errClientLeft = errors.New("client left: broken pipe")

// finished is in the last choice of a chat, after which some servers send no end mark.
var finished = []byte(`"finish_reason":"`)

func (s *stream) event(e sse.Event) bool {
	s.closed = s.closed || s.mustClose && (e.Closes() || bytes.Contains(e.Data, finished))
	return s.observer == nil || s.observer.Event(e, s.now)
}

// step returns what is to be sent next, at least one byte, and counts it. io.EOF is the end
// of a response that may be ended properly, a failure told in its tail
// included; after another error the connection has to be cut.
func (s *stream) step() (piece []byte, err error) {
	defer func() { s.sent += int64(len(piece)) }()
	if len(s.ahead) > 0 {
		piece := s.ahead
		s.ahead = nil
		return piece, nil
	}
	if s.complete {
		return nil, io.EOF
	}
	piece, err = s.next()
	if err == nil {
		if s.e.drained() {
			s.unwatch() // the client may leave once it has this piece
		}
		return piece, nil
	}
	s.complete = true
	if err == io.EOF {
		s.closeUpstream()
		return nil, io.EOF
	}
	s.fail(upstreamOutcome(err), err)
	if tail := s.tail(); len(tail) > 0 {
		return tail, nil
	}
	if s.outcome == ClientGone {
		return nil, errClientLeft
	}
	return nil, err
}

// next returns what the upstream has sent, in whole events if it sends events.
func (s *stream) next() ([]byte, error) {
	for {
		piece, err := s.e.Next()
		s.now = time.Now()
		if err == io.EOF {
			err = s.end()
		}
		switch {
		case err == io.EOF && len(s.filter.Pending()) > 0:
			s.out = append(s.out[:0], s.filter.Pending()...)
			s.filter.Reset()
			return s.out, nil
		case err != nil:
			return nil, err
		case !s.events:
			if s.observer != nil {
				s.observer.Body(piece, false)
			}
			return piece, nil
		}
		if s.out = s.filter.Feed(piece, s.out[:0], s.keep); len(s.out) > 0 {
			return s.out, nil
		}
	}
}

// end is what the end of the body means: io.EOF, or an error where it is an
// event stream that only the end of the connection ends, and nothing in it says
// that it was over. An event too long to be looked at may have said so.
func (s *stream) end() error {
	if !s.mustClose || s.closed || s.filter.Skipped() > 0 {
		return io.EOF
	}
	if last, ok := s.filter.Last(); !ok || !last.Closes() {
		return newError(PhaseBody, io.ErrUnexpectedEOF)
	}
	s.closed = true
	return io.EOF
}

// tail asks the observer how to tell the client of the failure. The unfinished
// event, if any, has been held back and is dropped.
func (s *stream) tail() []byte {
	if !s.events || s.observer == nil || s.outcome == ClientGone {
		return nil
	}
	var open []byte
	if s.filter.Torn() {
		open = append(open, "\n\n"...)
	}
	if s.out = s.observer.Tail(append(s.out[:0], open...), s.outcome, s.cause); len(s.out) == len(open) {
		return nil
	}
	return s.out
}

// fail keeps the first failure.
func (s *stream) fail(o Outcome, err error) {
	if s.outcome == Complete {
		s.outcome, s.cause = o, err
	}
}

func upstreamOutcome(err error) Outcome {
	switch {
	case errors.Is(err, ErrCanceled):
		return ClientGone
	case errors.Is(err, ErrIdle):
		return IdleTimeout
	case errors.Is(err, ErrDeadline):
		return TotalTimeout
	}
	return UpstreamFailed
}

func clientOutcome(err error) Outcome {
	if isTimeout(err) {
		return SlowReader
	}
	return ClientGone
}

// SupportsBodyWriteTo tells fasthttp to call WriteTo.
func (s *stream) SupportsBodyWriteTo() bool { return true }

// WriteTo sends the body to w, fasthttp's writer, piece by piece: each is a
// chunk, or, if the length is known, flushed here.
func (s *stream) WriteTo(w io.Writer) (n int64, err error) {
	flusher, _ := w.(interface{ Flush() error })
	s.until = time.Time{} // the server has set its own deadline since
	for {
		piece, err := s.step()
		s.bound()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		if _, err = w.Write(piece); err == nil && flusher != nil {
			err = flusher.Flush()
		}
		if err != nil {
			s.fail(clientOutcome(err), err)
			return n, err
		}
		n += int64(len(piece))
	}
}

// Read is what WriteTo does for a reader that does not know it.
func (s *stream) Read(p []byte) (int, error) {
	if len(s.unread) == 0 {
		piece, err := s.step()
		s.bound()
		if err != nil {
			return 0, err
		}
		s.unread = piece
	}
	n := copy(p, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

// bound gives the next write to the client s.slow from now, or a little less:
// setting a deadline for each token would cost more than it is worth.
func (s *stream) bound() {
	if s.client == nil {
		return
	}
	if now := time.Now(); s.until.Sub(now) < s.slow-s.slow/4 {
		s.until = now.Add(s.slow)
		s.client.SetWriteDeadline(s.until)
	}
}

// unbound ends the write deadline: when the next request is read where that
// can be noticed, since fasthttp has a last line end to write, else now.
func (s *stream) unbound() {
	if cc := clientConnOf(s.client); cc != nil {
		cc.bounded = true
	} else if s.client != nil {
		s.client.SetWriteDeadline(time.Time{})
	}
}

// unwatch lets the client leave without ending the exchange.
func (s *stream) unwatch() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// closeUpstream lets go of the client's watch, then of the exchange.
func (s *stream) closeUpstream() {
	s.unwatch()
	if s.e != nil {
		s.e.Close()
		s.e = nil
	}
}

// CloseWithError is called by fasthttp when the response has been written or
// has failed.
func (s *stream) CloseWithError(err error) error {
	if err != nil {
		s.fail(clientOutcome(err), err)
	}
	s.unbound()
	if cc := clientConnOf(s.client); cc != nil && s.outcome == SlowReader {
		cc.resetOnClose()
	}
	s.closeUpstream()
	observer, outcome, sent, cause := s.observer, s.outcome, s.sent, s.cause
	s.recycle()
	if observer != nil {
		observer.Done(outcome, sent, cause)
	}
	return nil
}

// recycle forgets everything but the buffers.
func (s *stream) recycle() {
	if s.whole != nil && cap(*s.whole) <= wholeBodyBytes {
		wholeBodies.Put(s.whole)
	}
	s.filter.Reset()
	filter, keep, out := s.filter, s.keep, s.out
	if cap(out) > keptEventBytes {
		out = nil
	}
	*s = stream{filter: filter, keep: keep, out: out[:0]}
	streams.Put(s)
}
