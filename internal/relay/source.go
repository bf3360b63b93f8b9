package relay

import (
	"bytes"
	"io"

	"github.com/cognitora/dataplane/internal/sse"
)

// source is the exchange that a response is read from, and the state of its event stream.
type source struct {
	e       *Exchange // nil: closed, or about to be replaced
	filter  sse.Filter
	closing closing
}

// closing is the state of a stream's closing event.
type closing uint8

const (
	mayEnd   closing = iota // no closing event is needed
	mustTell                // the closing event has not come yet
	hasTold                 // the closing event has come
)

// begin makes e the present exchange. must means that streams of this API have a closing event. If
// the stream ends with its connection, a closing event is needed too, because a crash looks like
// the end.
func (s *source) begin(e *Exchange, must bool) {
	s.e, s.closing = e, mayEnd
	s.filter.Reset()
	if e.IsSSE() && (must || e.ContentLength() == lengthUntilClose) {
		s.closing = mustTell
	}
}

// finished is in the last choice of a chat. Some servers send no end mark after the last choice.
var finished = []byte(`"finish_reason":"`)

func mayBeLast(e sse.Event) bool { return e.Closes() || bytes.Contains(e.Data, finished) }

// note checks whether an event closes the stream.
func (s *source) note(e sse.Event) {
	if s.closing == mustTell && mayBeLast(e) {
		s.closing = hasTold
	}
}

// isOver reports whether the whole body, or its failure, has been returned.
func (s *source) isOver() bool { return s.e.ended != nil && s.e.held == 0 }

// end interprets the end of the body. end returns io.EOF, or an error if a needed closing event has
// not come. An event that was too long to be parsed may have been the closing event.
func (s *source) end() error {
	if s.closing != mustTell || s.filter.Skipped() > 0 {
		return io.EOF
	}
	if last, ok := s.filter.Last(); ok && last.Closes() {
		return io.EOF
	}
	return newError(PhaseBody, io.ErrUnexpectedEOF)
}

// last passes the unfinished event of a properly ended stream to show. torn means that out now ends
// inside an event, so that a blank line must precede the next event.
func (s *source) last(out []byte, show sse.Show) (rest []byte, enough, torn bool) {
	pending := s.filter.Pending()
	if len(pending) == 0 {
		return out, false, s.filter.Torn()
	}
	from := len(out)
	if e, ok := s.filter.Last(); ok {
		out, enough = show(e, out)
	} else {
		out = append(out, pending...)
	}
	return out, enough, len(out) > from && !sse.EndsBlank(out[from:])
}

// closesAnywhere reports whether a complete stream contains a closing event.
func closesAnywhere(events []byte) bool {
	var s sse.Scanner
	closed := false
	s.Feed(events, func(e sse.Event) { closed = closed || mayBeLast(e) })
	last, ok := s.Last()
	return closed || s.Skipped() > 0 || ok && last.Closes()
}
