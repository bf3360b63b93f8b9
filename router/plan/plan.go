// Package plan says which legs answer a request, and how their results make one answer.
//
// A request for an answer is one leg (Direct). One that is about a stored response asks first which
// node has it, by legs whose answers are captured, and then that node. Whatever else takes several
// legs is a Plan of its own: prefill then decode, a small model then a large one.
package plan

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/request"
)

// Parts are what a Planner works with. It owns none of them.
type Parts struct {
	Legs    *leg.Dispatcher
	Fleet   *fleet.Fleet
	Stored  *affinity.Table
	Metrics *metrics.Router
	Log     *slog.Logger
}

// Planner answers requests by plans. It is safe for concurrent use.
type Planner struct {
	parts     Parts
	searches  atomic.Int32  // for stored responses, under way
	lostAfter time.Duration // see responsesLost
}

// New returns a planner.
func New(p Parts) *Planner { return &Planner{parts: p, lostAfter: responsesLost} }

// Plan says which legs answer a request.
type Plan interface {
	// Answer runs legs until one of them has an answer for the client, which it hands to the task's client. It returns
	// the error that the router gives itself where none has.
	Answer(t *Task) *apierror.Error
}

// Task is a request that is being answered by a plan. Take one with Planner.Task, call Answer, and
// end it with Finish. One goroutine at a time works on it.
type Task struct {
	Request *request.Request
	Client  answer.Place // the client's

	planner *Planner
	plan    Plan
	leg     *leg.Leg // whose answer the client gets, or that was sent last; nil: none was
}

var tasks = sync.Pool{New: func() any { return new(Task) }}

// Task returns a task that answers r, for a client, by plan. From now on it owns r.
func (p *Planner) Task(r *request.Request, client answer.Place, plan Plan) *Task {
	t := tasks.Get().(*Task)
	*t = Task{Request: r, Client: client, planner: p, plan: plan}
	return t
}

// Answer has the plan answer the request. It returns nil when the client's place has taken an answer,
// an engine's own error among them, or the error that the router gives itself. Finish must follow in
// either case.
func (t *Task) Answer() *apierror.Error { return t.plan.Answer(t) }

// Run sends a leg that asks q, and has its answer go to the client.
func (t *Task) Run(q leg.Question) *apierror.Error {
	d := t.planner.parts.Legs
	d.Arrived()
	t.leg = d.Leg(t.Request, q, t.Client)
	return t.leg.Do()
}

// Event looks at one event of the answer, read at time now, and tells whether the client gets it.
func (t *Task) Event(e sse.Event, now time.Time) (keep bool) { return t.leg.Event(e, now) }

// Piece looks at a piece of an answer that is not a stream; whole: it is all of it.
func (t *Task) Piece(piece []byte, whole bool) { t.leg.Piece(piece, whole) }

// Failure is the error that ends a stream which had begun and could not be finished because of err.
func (t *Task) Failure(err error) *apierror.Error {
	events := int64(0)
	if t.leg != nil {
		events = t.leg.Reading.Events
	}
	return t.planner.parts.Legs.Failure(t.Request, err, events)
}

// Finish ends the task and its request, whatever became of them. o is how the answer ended, if there
// was one. Neither may be used afterwards, and nobody may still end the request's Life.
func (t *Task) Finish(o relay.Outcome) {
	r, l := t.Request, t.leg
	*t = Task{}
	tasks.Put(t)
	defer r.Recycle()
	if l != nil {
		l.Finish(o)
	}
}

// Account is what has become of a task, for headers and the access log.
type Account struct {
	Model    string // canonical, empty if it is not known
	Node     string // that answers, empty if none does
	Asked    string // that answers or was asked last, empty if none was
	Attempts int
	Matched  int // leading blocks that the answering node was believed to hold
	Blocks   int // of the prompt
	TTFT     time.Duration
	Usage    usage.Counts
	Cause    string // how the last attempt that failed did, in a word as the metrics have it
}

// Account says what has become of the task so far. o is how its answer ended, if it has.
func (t *Task) Account(o relay.Outcome) Account {
	l := t.leg
	if l == nil {
		return Account{}
	}
	return Account{
		Model: l.Served(), Node: l.NodeID(), Asked: l.Asked(), Attempts: l.Attempts, Matched: l.Matched(),
		Blocks: l.Blocks(), TTFT: l.TTFT, Usage: l.Reading.Usage, Cause: l.Cause(o),
	}
}

// Direct answers by one leg. A request that goes on from a stored response goes to the node that has
// it.
type Direct struct{}

// Answer implements Plan.
func (Direct) Answer(t *Task) *apierror.Error {
	q := leg.Pinned(t.Request.Pin)
	if previous := t.Request.Scan.PreviousResponseID; len(previous) > 0 {
		node, err := t.planner.holder(t.Request, previous)
		if err != nil {
			return err
		}
		q = leg.Question{Node: node, Bond: leg.Continued}
	}
	return t.Run(q)
}

// Stored asks the node that has stored a response for it.
type Stored struct{ ID []byte }

// Answer implements Plan.
func (s Stored) Answer(t *Task) *apierror.Error {
	node, err := t.planner.holder(t.Request, s.ID)
	if err != nil {
		return err
	}
	return t.Run(leg.Question{Node: node, Bond: leg.Stored})
}
