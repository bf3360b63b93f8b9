// Package answer passes a leg's answer to its Place. On the way the package reads the usage, the
// failure and the spacing of the events. The same code reads answers for the client and answers
// that the router keeps.
package answer

import (
	"bytes"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/scan"
)

// Place is the destination of a leg's answer: the client, or memory of the router.
type Place interface {
	// Take passes on the answer in ex and then closes ex. The head of the answer and, for a stream,
	// the first event have been read before. Take reports every event and piece to s, or lets the
	// request's plan report them. If Take returns an error, nothing was passed on. The caller then
	// keeps ex and may ask another node.
	Take(ex *relay.Exchange, s Source) error
}

// Source observes an answer on its way to a Place.
type Source interface {
	// Event looks at one event of a stream, read at time now, and says whether to pass it on. Event
	// may blank parts of the event's data. An event without Raw announces an event that is too long
	// to be looked at.
	Event(e sse.Event, now time.Time) (keep bool)
	// Piece looks at a piece of an answer that is not a stream. whole says that the piece is the
	// whole answer.
	Piece(piece []byte, whole bool)
}

// Reading holds the facts read from one answer.
type Reading struct {
	Usage  usage.Counts
	Failed bool // the engine sent an error event of its own
	Events int64
	First  time.Time // event
	Last   time.Time
	Gap    time.Duration // the longest between two events
}

// Event reads one event of a stream and says whether to pass it on. asked says that only the router
// asked for the usage; Event then removes the usage.
func (r *Reading) Event(api scan.API, e sse.Event, now time.Time, asked bool) (keep bool) {
	if r.Events++; r.Events == 1 {
		r.First = now
	} else {
		r.Gap = max(r.Gap, now.Sub(r.Last))
	}
	r.Last = now
	r.Failed = r.Failed || failed(api, e)
	if !usage.Merge(e.Data, &r.Usage) || !asked {
		return true
	}
	if usage.ChoicesEmpty(e.Data) {
		return false
	}
	usage.Blank(e.Data) // some engines put the usage into the last choice, or into every choice
	return true
}

// failed says whether e is the engine's report of a failure.
func failed(api scan.API, e sse.Event) bool {
	switch api {
	case scan.Responses:
		return string(e.Name) == "error" || string(e.Name) == "response.failed"
	case scan.Messages:
		return string(e.Name) == "error"
	}
	return bytes.HasPrefix(e.Data, []byte(`{"error"`))
}

// Document reads a whole answer that is not a stream.
func (r *Reading) Document(doc []byte) { usage.Merge(doc, &r.Usage) }

// MeanGap returns the mean time between two events, or 0 for fewer than two events.
func (r *Reading) MeanGap() time.Duration {
	if r.Events < 2 {
		return 0
	}
	return r.Last.Sub(r.First) / time.Duration(r.Events-1)
}
