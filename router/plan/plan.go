// Package plan says which legs answer a request, and how their results make one answer.
//
// A request for an answer is one leg (Direct). One that is about a stored response asks first which
// node has it, by legs whose answers are captured, and then that node. Whatever else takes several
// legs is a Plan of its own: prefill then decode, a small model then a large one.
package plan

import (
	"log/slog"
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
	// Choose makes the plan of a request for an answer, once it has been read. Default: Direct.
	Choose func(*request.Request) Plan
}

// Planner answers requests by plans. It is safe for concurrent use.
type Planner struct {
	parts     Parts
	searches  atomic.Int32  // for stored responses, under way
	lostAfter time.Duration // see responsesLost
}

// New returns a planner.
func New(p Parts) *Planner {
	if p.Choose == nil {
		p.Choose = func(*request.Request) Plan { return Direct{} }
	}
	return &Planner{parts: p, lostAfter: responsesLost}
}

// Plan says which legs answer a request. Its methods are called one at a time. A plan of one leg
// embeds OneLeg.
type Plan interface {
	// Answer runs legs until one of them has an answer for the client (Task.Run with Task.Client).
	// It returns the error that the router gives itself where none has.
	Answer(t *Task) *apierror.Error
	// Follows tells whether further legs may follow the one whose answer goes to the client. The
	// request keeps its body for them.
	Follows() bool
	// Event is called for each event of that answer, read at that time. It appends to out what the
	// client gets now, and may withhold the event by Task.Withhold; Task.Read must be called for
	// each. enough ends the leg. Events longer than sse.MaxEventBytes pass unseen, behind what was
	// withheld.
	Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
	// End is called when the answer of the leg has ended, by o. It appends to out what the client
	// still gets, and says whether another leg follows, which Next runs; none does unless Follows
	// says that it may. What is withheld then is dropped where another leg follows, and else sent.
	End(t *Task, out []byte, o relay.Outcome) (rest []byte, more bool)
	// Next runs legs until one of them has an event stream that goes on with the client's. It may
	// wait.
	Next(t *Task) *apierror.Error
}

// OneLeg is what plans have in common whose answer comes from one leg.
type OneLeg struct{}

// Follows implements Plan.
func (OneLeg) Follows() bool { return false }

// Event implements Plan.
func (OneLeg) Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if t.Read(e, at) {
		out = append(out, e.Raw...)
	}
	return out, false
}

// End implements Plan.
func (OneLeg) End(_ *Task, out []byte, _ relay.Outcome) (rest []byte, more bool) { return out, false }

// Next implements Plan. It is never called.
func (OneLeg) Next(*Task) *apierror.Error { return nil }

// Task is a request that is being answered by a plan. Make one with NewTask, begin it with
// Planner.Begin, call Answer, and end it with Finish: its memory may then begin another. One
// goroutine at a time works on it.
type Task struct {
	Request *request.Request // always the same memory
	Client  answer.Place     // the client's; opened by the first answer, which others may follow

	planner *Planner
	plan    Plan
	leg     *leg.Leg      // under way, or the last; nil: none was sent
	shown   bool          // the answer of leg goes to the client
	ended   relay.Outcome // how the answer of leg has ended
	before  before

	withheld []byte // events
}

// before is what the legs before the one under way have come to.
type before struct {
	attempts int
	shown    bool // some of their answers went to the client; the next three are of those
	events   int64
	ttft     time.Duration
	usage    usage.Counts
}

// NewTask returns memory for a task and its request.
func NewTask() *Task { return &Task{Request: request.New()} }

// Begin makes t a task that answers its request, for a client, by plan; nil: by the one that is
// chosen once the request has been read.
func (p *Planner) Begin(t *Task, client answer.Place, plan Plan) {
	t.Client, t.planner, t.plan = client, p, plan
}

// Answer has the plan answer the request. It returns nil when the client's place has taken an
// answer, an engine's own error among them, or the error that the router gives itself. Finish must
// follow in either case.
func (t *Task) Answer() *apierror.Error {
	t.planner.parts.Legs.Arrived()
	if t.plan == nil {
		t.plan = t.planner.parts.Choose(t.Request)
	}
	return t.plan.Answer(t)
}

// Run ends the leg before, if there was one, and sends one that asks q and has its answer go to
// place.
func (t *Task) Run(q leg.Question, place answer.Place) *apierror.Error {
	t.endLeg()
	t.shown = place == t.Client
	q.Continues = t.shown && t.before.shown
	t.leg = t.planner.parts.Legs.Leg(t.Request, q, place)
	return t.leg.Do()
}

// endLeg ends the leg under way, which has delivered all that it will.
func (t *Task) endLeg() {
	l := t.leg
	if l == nil {
		return
	}
	b := &t.before
	b.attempts += l.Attempts
	if t.shown && l.TTFT > 0 {
		if !b.shown {
			b.ttft = l.TTFT
		}
		b.events += l.Reading.Events
		b.usage, b.shown = joined(b.usage, l.Reading.Usage), true
	}
	ended := t.ended
	t.leg, t.ended = nil, relay.Complete
	l.Finish(ended)
}

// joined is the usage of an answer that one leg has begun and the next one gone on with: the prompt
// is the first one's, the completion is both's.
func joined(first, next usage.Counts) usage.Counts {
	sum := first
	if !sum.HasPrompt {
		sum.Prompt, sum.HasPrompt, sum.Cached, sum.HasCached = next.Prompt, next.HasPrompt, next.Cached, next.HasCached
	}
	sum.Completion, sum.HasCompletion = sum.Completion+next.Completion, sum.HasCompletion || next.HasCompletion
	return sum
}

// Follows tells whether further legs may follow the one whose answer goes to the client.
func (t *Task) Follows() bool { return t.plan.Follows() }

// Event decides what the client gets of an event of the answer: see relay.Follower.
func (t *Task) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if len(e.Raw) == 0 {
		return t.Release(out), false
	}
	held, decided := t.withheld, false
	defer func() {
		if !decided { // a bug: what was withheld before is still to be sent
			t.withheld = held
		}
	}()
	rest, enough = t.plan.Event(t, e, out, at)
	decided = true
	return rest, enough
}

// maxWithheld bounds the bytes of events that a task withholds.
const maxWithheld = 64 << 10

// Withhold keeps an event from the client until Release. Where that would be more than 64 KiB, all
// that is withheld is appended to out instead, and ok is false.
func (t *Task) Withhold(e sse.Event, out []byte) (rest []byte, ok bool) {
	if len(t.withheld)+len(e.Raw) > maxWithheld {
		return append(t.Release(out), e.Raw...), false
	}
	t.withheld = append(t.withheld, e.Raw...)
	if !sse.EndsBlank(e.Raw) { // the last event of a stream: another one may follow it now
		t.withheld = append(t.withheld, '\n')
	}
	return out, true
}

// Release appends to out what is withheld.
func (t *Task) Release(out []byte) []byte {
	if len(t.withheld) == 0 {
		return out
	}
	out = append(out, t.withheld...)
	t.withheld = nil
	return out
}

// Read reads an event of the leg under way, and tells whether the client is to get it.
func (t *Task) Read(e sse.Event, at time.Time) (keep bool) { return t.leg.Event(e, at) }

// Piece looks at a piece of an answer that is not a stream; whole: it is all of it.
func (t *Task) Piece(piece []byte, whole bool) { t.leg.Piece(piece, whole) }

// End decides what follows the answer of the leg under way, which has ended by o: see
// relay.Follower.
func (t *Task) End(out []byte, o relay.Outcome) (rest []byte, more bool) {
	if t.shown {
		t.ended = o
	}
	if rest, more = t.plan.End(t, out, o); !more || !t.plan.Follows() {
		return t.Release(rest), false
	}
	t.withheld = nil
	return rest, true
}

// Next runs legs until one of them goes on with the client's stream.
func (t *Task) Next() *apierror.Error {
	t.endLeg()
	return t.plan.Next(t)
}

// Failure is the error that ends a stream which had begun and could not be finished because of err.
func (t *Task) Failure(err error) *apierror.Error {
	events := t.before.events
	if t.leg != nil && t.shown {
		events += t.leg.Reading.Events
	}
	return t.planner.parts.Legs.Failure(t.Request, err, events)
}

// Finish ends the task and forgets its request, whatever became of them. o is how the answer ended,
// if there was one. Nobody may still end the request's Life.
func (t *Task) Finish(o relay.Outcome) {
	defer t.reset()
	if l := t.leg; l != nil {
		t.leg = nil
		l.Finish(t.outcome(o))
	}
}

// outcome is how the answer of the last leg has ended, where the client's has by o.
func (t *Task) outcome(o relay.Outcome) relay.Outcome {
	if !t.shown || t.ended == relay.Enough {
		return t.ended
	}
	return o
}

// reset forgets all but memory.
func (t *Task) reset() {
	r := t.Request
	r.Reset()
	*t = Task{}
	t.Request = r
}

// Attempts is how many exchanges the task has had with nodes so far, in all legs.
func (t *Task) Attempts() int {
	if t.leg == nil {
		return t.before.attempts
	}
	return t.before.attempts + t.leg.Attempts
}

// Node is the node that answers, empty if none does, and how many of the prompt's leading blocks it
// was believed to hold.
func (t *Task) Node() (id string, matched, blocks int) {
	if t.leg == nil {
		return "", 0, 0
	}
	return t.leg.NodeID(), t.leg.Matched(), t.leg.Blocks()
}

// Account is what has become of a task, for the access log.
type Account struct {
	Model    string // canonical, empty if it is not known
	Node     string // that answers, empty if none does
	Asked    string // that answers or was asked last, empty if none was
	Attempts int    // of all legs
	Matched  int    // leading blocks that the answering node was believed to hold
	Blocks   int    // of the prompt
	TTFT     time.Duration
	Usage    usage.Counts // of the legs whose answers went to the client
	Cause    string       // how the last attempt that failed did, in a word as the metrics have it
}

// Account says what has become of the task so far. o is how the client's answer ended, if it has.
func (t *Task) Account(o relay.Outcome) Account {
	l, b := t.leg, &t.before
	if l == nil {
		return Account{Attempts: b.attempts, TTFT: b.ttft, Usage: b.usage}
	}
	a := Account{
		Model: l.Served(), Node: l.NodeID(), Asked: l.Asked(), Attempts: t.Attempts(), Matched: l.Matched(),
		Blocks: l.Blocks(), TTFT: b.ttft, Usage: b.usage, Cause: l.Cause(t.outcome(o)),
	}
	if t.shown {
		a.Usage = joined(b.usage, l.Reading.Usage)
		if !b.shown {
			a.TTFT = l.TTFT
		}
	}
	return a
}

// Direct answers by one leg. A request that goes on from a stored response goes to the node that
// has it.
type Direct struct{ OneLeg }

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
	return t.Run(q, t.Client)
}

// Stored asks the node that has stored a response for it.
type Stored struct {
	OneLeg
	ID []byte // valid until Answer has returned
}

// Answer implements Plan.
func (s Stored) Answer(t *Task) *apierror.Error {
	node, err := t.planner.holder(t.Request, s.ID)
	if err != nil {
		return err
	}
	return t.Run(leg.Question{Node: node, Bond: leg.Stored}, t.Client)
}
