// Package answer says where the answer of a leg goes, and reads answers on their way: how much was
// used, whether it failed, how its events were spaced. An answer for the client and one that the
// router keeps are read by the same code.
package answer

import (
	"bytes"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/scan"
)

// Place is where the answer of a leg goes: the client, or memory of the router.
type Place interface {
	// Take takes the answer in ex over: its head has been read, and the first event of a stream. It
	// closes ex in the end. It tells s of all that comes, or has the request's plan do so. After an
	// error nothing has been taken, ex is still the caller's, and another node may be asked.
	Take(ex *relay.Exchange, s Source) error
}

// Source is where an answer comes from. It is told of what passes.
type Source interface {
	// Event looks at one event of a stream, read at time now, and tells whether it is passed on. It
	// may blank parts of the event's data. An event without Raw announces one that is too long to
	// be looked at.
	Event(e sse.Event, now time.Time) (keep bool)
	// Piece looks at a piece of any other answer; whole: it is all of it.
	Piece(piece []byte, whole bool)
}

// Reading is what has been read of one answer.
type Reading struct {
	Usage  usage.Counts
	Failed bool // the engine sent an error event of its own
	Events int64
	First  time.Time // event
	Last   time.Time
	Gap    time.Duration // the longest between two events
}

// Event reads one event of a stream and tells whether it is passed on. A usage that only the router
// has asked for is taken out: asked says so.
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
	usage.Blank(e.Data) // some engines have it in the last choice, or in every one
	return true
}

// failed tells whether e is how the engine tells of a failure.
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

// MeanGap is the mean time between two events, 0 where there were fewer.
func (r *Reading) MeanGap() time.Duration {
	if r.Events < 2 {
		return 0
	}
	return r.Last.Sub(r.First) / time.Duration(r.Events-1)
}
