package relay

import (
	"errors"
	"io"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// SiftOptions are the limits and the rules of Sift.
type SiftOptions struct {
	// Limit is the largest number of bytes to hold. Sift holds at most one read (32 KiB) more.
	Limit int
	// Until is the time at which Sift returns with what has come; zero: there is none.
	Until time.Time
	// MustClose is ReplyOptions.MustClose.
	MustClose bool
	// Event is called for each event of an event stream. Like Follower.Event, Event chooses the
	// bytes that are held for an event. If enough is true, Sift returns after the events that were
	// read together with this one.
	Event func(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
}

// Sifted says why Sift has returned.
type Sifted uint8

// These are the reasons.
const (
	SiftedWhole  Sifted = iota // the body has been read to its end
	SiftedEnough               // Event has enough
	SiftedFull                 // Limit is reached
	SiftedLate                 // Until has come
)

// Sift reads the beginning of the body of e, until Event has enough or a limit is reached. The head
// of e must have been read. Afterwards e holds the bytes that Event chose, or all bytes of a body
// that is not an event stream, as if they had not been read yet. The caller passes e on, for
// example to Reply, or closes e. Parsing is the same as in Reply. An error is an *Error about the
// upstream, and e then holds nothing.
func Sift(e *Exchange, o SiftOptions) (why Sifted, err error) {
	c := newCapture()
	defer c.recycle()
	c.source.begin(e, o.MustClose)
	over := false
	c.event = func(event sse.Event, out []byte, at time.Time) ([]byte, bool) {
		rest, enough := o.Event(event, out, at)
		over = over || enough
		return rest, false
	}
	kept := e.deadline
	e.deadline = earlier(kept, o.Until)
	defer func() { e.deadline = kept }()
	out := make([]byte, 0, siftedBytes)
	for events := e.IsSSE(); ; {
		out, why, err = c.sift(out, events)
		pending := len(c.source.filter.Pending())
		switch {
		case why == SiftedLate && !o.Until.IsZero() && e.deadline.Equal(o.Until):
		case err != nil:
			return why, err
		case why == SiftedWhole:
		case over:
			why = SiftedEnough
		case len(out)+pending > o.Limit || pending > sse.MaxEventBytes-2*largeBufferBytes:
			why = SiftedFull
		default:
			continue
		}
		e.Hold(append(out, c.source.filter.Pending()...))
		return why, nil
	}
}

// siftedBytes is the first size of the memory for the held bytes.
const siftedBytes = 4 << 10

// sift reads the next bytes of the body. why is SiftedWhole at its end, and SiftedLate at the
// deadline.
func (c *capture) sift(out []byte, events bool) (rest []byte, why Sifted, err error) {
	piece, err := c.source.e.Next()
	c.now = time.Now()
	switch {
	case err == io.EOF && !events:
		return out, SiftedWhole, nil
	case err == io.EOF:
		if err = c.source.end(); err != io.EOF {
			return out, SiftedWhole, err
		}
		var torn bool
		if out, _, torn = c.source.last(out, c.show); torn {
			out = append(out, "\n\n"...)
		}
		c.source.filter.Reset() // the unfinished event is in out
		return out, SiftedWhole, nil
	case errors.Is(err, ErrDeadline):
		return out, SiftedLate, err
	case err != nil:
		return out, SiftedEnough, err
	case events:
		out, _ = c.source.filter.Feed(piece, out, c.show)
	default:
		out = append(out, piece...)
	}
	return out, SiftedEnough, nil
}
