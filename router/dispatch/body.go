package dispatch

import (
	"bytes"
	"errors"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/scan"
)

// stream is what is known of an answer while it goes through.
type stream struct {
	failed bool // the engine sent an error event of its own
	stored bool // the response's id has been noted
	events int64
	first  time.Time
	last   time.Time
	gap    time.Duration // the longest between two events
}

// Event looks at one event of the answer, read at time now, and tells whether the client
// gets it. A usage that the client has not asked for becomes white space in it.
func (j *Job) Event(e sse.Event, now time.Time) (keep bool) {
	if e.IsDone() {
		return true
	}
	s := &j.stream
	if s.events++; s.events == 1 {
		s.first = now
	} else {
		s.gap = max(s.gap, now.Sub(s.last))
	}
	s.last = now
	j.wait.Progress(now)
	if s.events%32 == 1 {
		j.cur.node.NoteProgress()
	}
	switch j.API {
	case scan.Responses:
		s.failed = s.failed || string(e.Name) == "error" || string(e.Name) == "response.failed"
		j.store(e.Data)
	case scan.Messages:
		s.failed = s.failed || string(e.Name) == "error"
	default:
		s.failed = s.failed || bytes.HasPrefix(e.Data, []byte(`{"error"`))
	}
	if !usage.Merge(e.Data, &j.Usage) {
		return true
	}
	if !j.asks {
		return true
	}
	if usage.ChoicesEmpty(e.Data) {
		return false
	}
	usage.Blank(e.Data) // some engines have it in the last choice, or in every one
	return true
}

// Piece looks at a piece of an answer that is not a stream; whole says that it is all of it.
func (j *Job) Piece(piece []byte, whole bool) {
	if !whole {
		j.wait.Progress(time.Now())
		return
	}
	usage.Merge(piece, &j.Usage)
	if j.API == scan.Responses {
		j.store(piece)
	}
}

// store notes which node made the response of a document or event.
func (j *Job) store(doc []byte) {
	if j.stream.stored {
		return
	}
	if id := usage.ResponseID(doc); id != nil {
		j.d.stored.Set(id, j.NodeID())
		j.stream.stored = true
	}
}

// Failure is the error that ends a stream which had begun and could not be finished.
func (j *Job) Failure(err error) *apierror.Error {
	e := &apierror.Error{Status: 502, Code: "backend_failed", Message: "the backend failed before the stream was complete", Sequence: j.stream.events}
	var cause *relay.Error
	switch timeout := errors.As(err, &cause) && cause.Kind == relay.KindTimeout; {
	case j.why() == reasonShutdown:
		e.Status, e.Code, e.Message = 503, "shutting_down", "the router is shutting down and ended the stream"
	case timeout && j.expired():
		e.Status, e.Code, e.Message = 504, "deadline_exceeded", "the stream was not complete within the deadline"
	case timeout:
		e.Status, e.Code, e.Message = 504, "backend_timeout", "the backend stopped sending before the stream was complete"
	}
	j.d.metrics.StreamErrors.WithLabelValues(e.Code).Inc()
	return e
}

// NodeID is the node that answers, empty if none does.
func (j *Job) NodeID() string {
	if j.cur == nil || j.cur.node == nil {
		return ""
	}
	return j.cur.node.ID
}

// Asked is the node that answers or, where none does, the one that was asked last; empty if none was.
func (j *Job) Asked() string {
	if id := j.NodeID(); id != "" || len(j.tried) == 0 {
		return id
	}
	return j.tried[len(j.tried)-1].ID
}

// Model is the canonical name of the model, empty if it is not known.
func (j *Job) Model() string {
	if j.model == nil {
		return ""
	}
	return j.model.name
}

// Matched is the number of leading blocks that the answering node was believed to hold.
func (j *Job) Matched() int {
	if j.cur == nil {
		return 0
	}
	return j.cur.matched
}

// Cause is how the last attempt that failed did, in a word as the metrics have it; empty if none has. o is how the answer
// ended, if there was one.
func (j *Job) Cause(o relay.Outcome) string {
	if kind := j.broke(o); kind != "" {
		return kind
	}
	return j.cause
}

// broke is how the node broke off an answer that had begun and ended with o, in a word as the metrics have it; empty if it
// did not.
func (j *Job) broke(o relay.Outcome) string {
	if j.NodeID() == "" || j.why() != reasonNone || j.expired() {
		return ""
	}
	switch o {
	case relay.UpstreamFailed:
		return "cut"
	case relay.IdleTimeout:
		return "idle"
	}
	return ""
}

// Left tells whether the client has gone.
func (j *Job) Left() bool { return j.why() == reasonLeft }

// Stopped tells whether the router has ended the job because it stops.
func (j *Job) Stopped() bool { return j.why() == reasonShutdown }
