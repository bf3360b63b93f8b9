package relay

import (
	"bytes"
	"io"

	"github.com/cognitora/dataplane/internal/sse"
)

// source is the exchange that a response is read from, with the state of its
// event stream.
type source struct {
	e       *Exchange // nil: closed, or on its way
	filter  sse.Filter
	closing closing
}

// closing says how an event stream may end.
type closing uint8

const (
	mayEnd   closing = iota // at any event
	mustTell                // not before an event that closes it
	hasTold                 // that event has come
)

// begin makes e what is read. must says that streams of this API have a closing
// event; without one, a stream that ends with its connection looks like one
// whose server has crashed.
func (s *source) begin(e *Exchange, must bool) {
	s.e, s.closing = e, mayEnd
	s.filter.Reset()
	if e.IsSSE() && (must || e.ContentLength() == lengthUntilClose) {
		s.closing = mustTell
	}
}

// finished is in the last choice of a chat, after which some servers send no end mark.
var finished = []byte(`"finish_reason":"`)

func mayBeLast(e sse.Event) bool { return e.Closes() || bytes.Contains(e.Data, finished) }

// note looks at an event for what it says about the end.
func (s *source) note(e sse.Event) {
	if s.closing == mustTell && mayBeLast(e) {
		s.closing = hasTold
	}
}

// isOver reports whether all of the body, or its failure, has been returned.
func (s *source) isOver() bool { return s.e.ended != nil && s.e.held == 0 }

// end interprets the end of the body: io.EOF, or an error where no event has said
// that it was over. An event too long to be looked at may have said so.
func (s *source) end() error {
	if s.closing != mustTell || s.filter.Skipped() > 0 {
		return io.EOF
	}
	if last, ok := s.filter.Last(); ok && last.Closes() {
		return io.EOF
	}
	return newError(PhaseBody, io.ErrUnexpectedEOF)
}

// last feeds show what a stream that ended properly has left unfinished. torn
// reports that out now ends inside an event: a blank line is due before
// anything else.
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

// closesAnywhere reports whether a stream that is there as a whole was closed.
func closesAnywhere(events []byte) bool {
	var s sse.Scanner
	closed := false
	s.Feed(events, func(e sse.Event) { closed = closed || mayBeLast(e) })
	last, ok := s.Last()
	return closed || s.Skipped() > 0 || ok && last.Closes()
}
