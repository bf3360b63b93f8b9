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
	Logger  *slog.Logger
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
	// says that it may. Withheld events are dropped if another leg follows, and sent otherwise.
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
// goroutine at a time works on it. A bug in a plan that follows an answer costs the client no
// event: from then on the source under way goes on unseen, nothing more of it is read, and no other
// leg follows.
type Task struct {
	Request *request.Request // always the same memory
	Client  answer.Place     // the client's; opened by the first answer, which others may follow

	planner *Planner
	plan    Plan
	leg     *leg.Leg      // under way, or the last; nil: none was sent
	shown   bool          // the answer of leg goes to the client
	follows bool          // what Plan.Follows said when that leg was sent
	ended   relay.Outcome // how the answer of leg has ended
	before  before

	withheld []byte // events
	open     bool   // they were too many: nothing more is withheld of the leg
	blind    bool   // a bug has ended the plan's say
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
	if t.shown = place == t.Client; t.shown {
		t.follows = t.plan.Follows()
	}
	q.Continues = t.shown && t.before.shown
	t.leg = t.planner.parts.Legs.Leg(t.Request, q, place)
	return t.leg.Do()
}

// total is what all legs so far have come to, the one under way included.
func (t *Task) total() before {
	b, l := t.before, t.leg
	if l == nil {
		return b
	}
	b.attempts += l.Attempts
	if t.shown && l.Delivered() {
		if !b.shown {
			b.ttft = l.TTFT
		}
		b.events += l.Reading.Events
		b.usage, b.shown = joined(b.usage, l.Reading.Usage), true
	}
	return b
}

// endLeg ends the leg under way, which has delivered all that it will.
func (t *Task) endLeg() {
	l, ended := t.leg, t.ended
	if l == nil {
		return
	}
	t.before = t.total()
	t.leg, t.ended, t.open = nil, relay.Complete, false
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
func (t *Task) Follows() bool { return t.follows }

// Event decides what the client gets of an event of the answer: see relay.Follower.
func (t *Task) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if t.blind || e.Oversized() {
		return append(t.Release(out), e.Raw...), false
	}
	held := t.withheld
	defer func() {
		if p := recover(); p != nil {
			t.bug(p, held)
			rest, enough = append(t.Release(out), e.Raw...), false
		}
	}()
	return t.plan.Event(t, e, out, at)
}

// maxWithheld bounds the bytes of events that a task withholds.
const maxWithheld = 64 << 10

// Withhold keeps an event from the client until Release. Past 64 KiB everything that is withheld
// and e go out at once, and so does the rest of the leg's answer.
func (t *Task) Withhold(e sse.Event, out []byte) (rest []byte) {
	if t.open || len(t.withheld)+len(e.Raw) > maxWithheld {
		t.open = true
		return append(t.Release(out), e.Raw...)
	}
	t.withheld = append(t.withheld, e.Raw...)
	if !sse.EndsBlank(e.Raw) { // the last event of a stream: another one may follow it now
		t.withheld = append(t.withheld, "\n\n"...)
	}
	return out
}

// Release appends to out what is withheld.
func (t *Task) Release(out []byte) []byte {
	out = append(out, t.withheld...)
	t.withheld = nil
	return out
}

// Read reads an event of the leg under way, and tells whether the client is to get it.
func (t *Task) Read(e sse.Event, at time.Time) (keep bool) { return t.leg.Event(e, at) }

// Piece looks at a piece of an answer that is not a stream; whole: it is all of it.
func (t *Task) Piece(piece []byte, whole bool) {
	if t.blind {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			t.bug(p, nil)
		}
	}()
	t.leg.Piece(piece, whole)
}

// End decides what follows the answer of the leg under way, which has ended by o: see
// relay.Follower.
func (t *Task) End(out []byte, o relay.Outcome) (rest []byte, more bool) {
	if t.shown {
		t.ended = o
	}
	if t.blind {
		return t.Release(out), false
	}
	held := t.withheld
	defer func() {
		if p := recover(); p != nil {
			t.bug(p, held)
			rest, more = t.Release(out), false
		}
	}()
	if rest, more = t.plan.End(t, out, o); !more || !t.follows {
		return t.Release(rest), false
	}
	t.withheld = nil
	return rest, true
}

// Next runs legs until one of them goes on with the client's stream.
func (t *Task) Next() (err *apierror.Error) {
	defer func() {
		if p := recover(); p != nil {
			t.bug(p, nil)
			err = errPlan
		}
	}()
	t.endLeg()
	return t.plan.Next(t)
}

// errPlan ends a stream whose plan has a bug.
var errPlan = &apierror.Error{
	Status: 500, Code: "router_bug",
	Message: "the router failed to go on with this stream; its log says more",
}

// bug reports p. The plan is not asked again, and what was withheld before the bug is still to be
// sent.
func (t *Task) bug(p any, withheld []byte) {
	t.blind, t.withheld = true, withheld
	t.planner.parts.Metrics.Bug(t.planner.parts.Logger, "following an answer", p)
}

// Failure is the error that ends a stream which had begun and could not be finished because of err.
func (t *Task) Failure(err error) *apierror.Error {
	return t.planner.parts.Legs.Failure(t.Request, err, t.total().events)
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

// outcome is how the last leg's answer ended, if the client's ended by o.
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
func (t *Task) Attempts() int { return t.total().attempts }

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
	l, all := t.leg, t.total()
	a := Account{Attempts: all.attempts, TTFT: all.ttft, Usage: all.usage}
	if l != nil {
		a.Model, a.Node, a.Asked, a.Cause = l.Served(), l.NodeID(), l.Asked(), l.Cause(t.outcome(o))
		a.Matched, a.Blocks = l.Matched(), l.Blocks()
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
