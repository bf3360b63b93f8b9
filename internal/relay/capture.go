package relay

import (
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// ErrTooLong means that a body is longer than the limit of Capture. The upstream is not at fault.
var ErrTooLong = errors.New("response is longer than what is kept of it")

// CaptureOptions are the limit and the rules of Capture.
type CaptureOptions struct {
	// Limit is the largest number of bytes to store.
	Limit int
	// MustClose is ReplyOptions.MustClose.
	MustClose bool
	// Event is called for each event of an event stream. Like Follower.Event, Event chooses the
	// bytes that are stored for an event. If Event is nil, every event is stored unchanged. A body
	// that is not an event stream is stored unchanged too.
	Event func(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
}

// Capture appends the body of e to dst. The head of e must have been read. Parsing is the same as
// in Reply. Capture reads to the end of the body, or until Event has enough. Capture's error is an
// *Error about the upstream, or ErrTooLong. After an error Capture returns dst unchanged. Besides
// the stored bytes, and the bytes of one read, Capture holds one unfinished event of at most
// sse.MaxEventBytes. Capture does not close e, whose deadlines bound the time.
func Capture(dst []byte, e *Exchange, o CaptureOptions) ([]byte, error) {
	c := newCapture()
	defer c.recycle()
	c.source.begin(e, o.MustClose)
	c.event = o.Event
	out, err := c.read(dst, len(dst)+o.Limit)
	if err != nil {
		return dst, err
	}
	return out, nil
}

// capture is a source whose body is read into memory.
type capture struct {
	source source
	event  func(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
	show   sse.Show // decide, bound once
	now    time.Time
}

var captures sync.Pool

func newCapture() *capture {
	c, ok := captures.Get().(*capture)
	if !ok {
		c = new(capture)
		c.show = c.decide
	}
	return c
}

// recycle resets everything except the buffers.
func (c *capture) recycle() {
	c.source.filter.Reset()
	*c = capture{source: source{filter: c.source.filter}, show: c.show}
	captures.Put(c)
}

func (c *capture) decide(e sse.Event, out []byte) (rest []byte, enough bool) {
	c.source.note(e)
	if c.event == nil {
		return append(out, e.Raw...), false
	}
	return c.event(e, out, c.now)
}

// read appends to out up to limit bytes in total.
func (c *capture) read(out []byte, limit int) ([]byte, error) {
	e, enough := c.source.e, false
	events := e.IsSSE()
	if n := e.ContentLength(); !events && n > int64(limit-len(out)) {
		return nil, ErrTooLong
	}
	for {
		piece, err := e.Next()
		c.now = time.Now()
		switch {
		case err == io.EOF && events:
			if err = c.source.end(); err == io.EOF {
				out, _, _ = c.source.last(out, c.show)
			}
		case err == nil && events:
			out, enough = c.source.filter.Feed(piece, out, c.show)
		case err == nil:
			out = append(out, piece...)
		}
		switch {
		case err != nil && err != io.EOF:
			return nil, err
		case len(out) > limit:
			return nil, ErrTooLong
		case err == io.EOF || enough:
			return out, nil
		}
	}
}
