package answer

import (
	"errors"
	"io"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
)

// ErrTooLong is what Take of a Memory fails with where the answer is longer than its limit. The
// node is not to blame.
var ErrTooLong = errors.New("the answer is longer than what is kept of it")

// Memory is a Place that keeps an answer for the router to read: its status and up to Limit bytes
// of its body. Of a stream it keeps the events that its source passes on.
type Memory struct {
	Limit int // bytes of the body

	Status int
	Body   []byte
}

// Take reads the answer to its end. The exchange's own deadlines bound that.
func (m *Memory) Take(ex *relay.Exchange, s Source) error {
	m.Status, m.Body = ex.Status(), m.Body[:0]
	var filter sse.Filter
	show := func(e sse.Event, out []byte) (rest []byte, enough bool) {
		if s.Event(e, time.Now()) {
			out = append(out, e.Raw...)
		}
		return out, false
	}
	for {
		piece, err := ex.Next()
		switch {
		case err == io.EOF:
			m.Body = append(m.Body, filter.Pending()...)
			if !ex.IsSSE() {
				s.Piece(m.Body, true)
			}
			ex.Close()
			return nil
		case err != nil:
			return err
		case ex.IsSSE():
			m.Body, _ = filter.Feed(piece, m.Body, show)
		default:
			m.Body = append(m.Body, piece...)
		}
		if len(m.Body)+len(filter.Pending()) > m.Limit {
			return ErrTooLong
		}
	}
}
