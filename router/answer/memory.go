package answer

import (
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
)

// Memory is a Place that keeps an answer for the router to read: its status and up to Limit bytes
// of its body. For a stream Memory keeps the events that its source passes on. Memory returns
// relay.ErrTooLong for a longer body.
type Memory struct {
	Limit     int  // bytes of the body
	MustClose bool // a stream without a closing event counts as cut: see relay.ReplyOptions

	Status int
	Body   []byte
}

// Take reads the answer to its end. The exchange's own deadlines bound the duration of Take.
func (m *Memory) Take(ex *relay.Exchange, s Source) (err error) {
	m.Status = ex.Status()
	m.Body, err = relay.Capture(m.Body[:0], ex, relay.CaptureOptions{
		Limit: m.Limit, MustClose: m.MustClose,
		Event: func(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
			if s.Event(e, at) {
				out = append(out, e.Raw...)
			}
			return out, false
		},
	})
	if err != nil {
		return err
	}
	if !ex.IsSSE() {
		s.Piece(m.Body, true)
	}
	ex.Close()
	return nil
}
