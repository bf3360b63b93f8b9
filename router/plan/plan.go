// Package plan decides which legs answer a request, and makes one answer of their results.
//
// A request for inference is one leg (Direct). A request for a model with a chain asks the models
// of the chain in turn (Cascade). If a node breaks off the stream of one of these two plans, a leg
// goes on with the stream (Resumed). A request about a stored response first asks the nodes which
// one has it, with captured answers, and then goes to that node. Any other combination of legs is a
// Plan of its own. A leg of any plan may hand its prompt over to another node; see package leg.
package plan

import (
	"cmp"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/room"
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

// Parts are the things that a Planner works with. A Planner owns none of its Parts.
type Parts struct {
	Legs    *leg.Dispatcher
	Fleet   *fleet.Fleet
	Stored  *affinity.Table
	Metrics *metrics.Router
	Logger  *slog.Logger
	// Choose returns the plan for a request for inference once the request has been read. The
	// default is a Cascade for a model with a chain, and Direct for any other model.
	Choose   func(*request.Request) Plan
	Cascades Cascades
	Resume   Resume
}

// Planner answers requests by plans. Planner is safe for concurrent use.
type Planner struct {
	parts     Parts
	searches  atomic.Int32  // running searches for stored responses
	tails     atomic.Uint32 // questions for the text of last tokens so far; the next begins at another node
	lostAfter time.Duration // see responsesLost
	held      *room.Room    // of answers that wait for a judgement
	resuming  chan struct{} // an element for each stream that another node is asked to go on with
}

// New returns a planner.
func New(p Parts) *Planner {
	planner := &Planner{
		parts: p, lostAfter: responsesLost, held: room.New(maxHeldTotal), resuming: make(chan struct{}, maxResuming),
	}
	if p.Choose == nil {
		planner.parts.Choose = planner.choose
	}
	return planner
}

// Plan decides which legs answer a request. A Plan's methods are called one at a time. A plan with
// one leg embeds OneLeg.
type Plan interface {
	// Answer runs legs until one of them has an answer for the client (Task.Run with Task.Client).
	// Answer returns the router's own error if no leg has an answer.
	Answer(t *Task) *apierror.Error
	// Follows says whether further legs may follow the leg whose answer goes to the client. The
	// request then keeps its body.
	Follows() bool
	// Event is called for each event of that answer, with the time at which it was read. Event
	// appends to out the bytes for the client. Event may withhold the event with Task.Withhold.
	// Event must call Task.Read for each event. enough ends the leg. An event longer than
	// sse.MaxEventBytes goes to the client without a call, after the withheld ones.
	Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool)
	// End is called when the answer of the leg has ended; o is the end of that answer. End appends
	// to out the last bytes for the client. more says that another leg follows, which Next runs;
	// more must be false unless Follows returned true. Withheld events are dropped if another leg
	// follows, and sent otherwise.
	End(t *Task, out []byte, o relay.Outcome) (rest []byte, more bool)
	// Next runs legs until one of them has an event stream that continues the client's stream. Next
	// may wait.
	Next(t *Task) *apierror.Error
}

// OneLeg implements the methods of Plan that a plan with one leg does not need.
type OneLeg struct{}

// Follows implements Plan.
func (OneLeg) Follows() bool { return false }

// Event implements Plan.
func (OneLeg) Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if t.Read(e, at) {
		out = t.Show(e, out)
	}
	return out, false
}

// End implements Plan.
func (OneLeg) End(t *Task, out []byte, o relay.Outcome) (rest []byte, more bool) {
	if t.obstacle != "" && t.brokenOff(o) {
		t.planner.countResumed("impossible", t.obstacle)
	}
	return out, false
}

// Next implements Plan. Next is never called.
func (OneLeg) Next(*Task) *apierror.Error { return nil }

// Task is a request together with the plan that answers it. Make one with NewTask, begin it with
// Planner.Begin, call Answer, and end it with Finish. A Task's memory may then begin another
// request. One goroutine at a time uses a Task.
//
// A bug in a plan that follows an answer costs the client no event. From then on the running answer
// passes through unread, and no other leg follows.
type Task struct {
	Request *request.Request // the same memory for all requests
	Client  answer.Place     // the client's place; the first answer opens the place, and later answers continue it

	planner *Planner
	plan    Plan
	leg     *leg.Leg      // the running or last leg; nil: none was sent
	shown   bool          // the answer of leg goes to the client
	follows bool          // result of Plan.Follows when the answer went to the client
	ended   relay.Outcome // the end of the leg's answer
	before  before

	withheld []byte // events
	open     bool   // the bound was passed; nothing more of the leg is withheld
	unseen   bool   // some event went to the client without a call of the plan
	mended   bool   // the plan has completed a broken stream
	broke    error  // the failure of a leg that another one was to go on after; nil: none
	blind    bool   // a bug in the plan has occurred, so the plan is not called any more

	obstacle string   // why no other node could go on with the stream; "": another could, or there is none
	resumed  *Resumed // memory of that plan; nil: no request has needed it
}

// before sums up the earlier legs.
type before struct {
	attempts int
	queued   time.Duration
	cause    string // the metrics' word for how the last one broke off
	asked    string // the last node
	shown    bool   // some earlier answers went to the client; the further fields cover these
	events   int64
	usage    usage.Counts
	counted  int64 // tokens of the first one's prompt; 0: unknown
	ttft     time.Duration
	expected time.Duration // ttft as it was expected; 0: nothing was expected
}

// NewTask returns memory for a task and its request.
func NewTask() *Task { return &Task{Request: request.New()} }

// Begin makes t a task that answers its request for a client by plan. A nil plan is chosen once the
// request has been read.
func (p *Planner) Begin(t *Task, client answer.Place, plan Plan) {
	t.Client, t.planner, t.plan = client, p, plan
}

// Answer lets the plan answer the request. Answer returns nil once the client's place has taken an
// answer, which may be an engine's own error. Otherwise Answer returns the router's own error. Call
// Finish in either case.
func (t *Task) Answer() *apierror.Error {
	t.planner.parts.Legs.Arrived()
	if t.plan == nil {
		t.plan = t.resumable(t.planner.parts.Choose(t.Request))
	}
	return t.plan.Answer(t)
}

// Run ends the preceding leg, if any. Then Run sends a leg with question q whose answer goes to
// place.
func (t *Task) Run(q leg.Question, place answer.Place) *apierror.Error {
	t.endLeg()
	t.toClient(place == t.Client)
	if p, ok := t.plan.(*Resumed); ok {
		q = p.ask(q)
	}
	q.Continues, q.Further, q.Step = t.shown && t.before.shown, t.before.attempts > 0, t.Steps().Step
	t.leg = t.planner.parts.Legs.Leg(t.Request, q, place)
	return t.leg.Do()
}

// toClient says whether the running leg's answer goes to the client.
func (t *Task) toClient(shown bool) {
	if t.shown = shown; shown {
		t.follows = t.plan.Follows()
	}
}

// total sums up all legs so far, the running one included.
func (t *Task) total() before {
	b, l := t.before, t.leg
	if l == nil {
		return b
	}
	b.attempts += l.Attempts
	b.queued += l.Queued()
	if t.shown && l.Delivered() {
		u := l.Usage()
		if b.shown {
			u = joined(b.usage, u)
		} else {
			b.ttft, b.expected, b.counted = l.TTFT, l.ExpectedTTFT(), l.Counted()
		}
		b.events += l.Reading.Events
		b.usage, b.shown = u, true
	}
	return b
}

// endLeg ends the running leg, which has delivered its whole answer.
func (t *Task) endLeg() {
	l, ended := t.leg, t.ended
	if l == nil {
		return
	}
	t.before = t.total()
	t.before.cause, t.before.asked = cmp.Or(l.Cause(ended), t.before.cause), cmp.Or(l.Asked(), t.before.asked)
	t.leg, t.ended, t.open = nil, relay.Complete, false
	l.Finish(ended)
}

// joined returns the usage of an answer that one leg began and the next one continued. The prompt
// tokens are the first leg's. The completion tokens are the sum, which is known if both are. The
// total is the last leg's, whose prompt has the answer so far.
func joined(first, next usage.Counts) usage.Counts {
	sum := next
	if first.HasPrompt {
		sum.Prompt, sum.HasPrompt = first.Prompt, first.HasPrompt
		sum.Cached, sum.HasCached = first.Cached, first.HasCached
	}
	sum.Completion, sum.HasCompletion = first.Completion+next.Completion, first.HasCompletion && next.HasCompletion
	return sum
}

// Follows says whether further legs may follow the leg whose answer goes to the client.
func (t *Task) Follows() bool { return t.follows }

// Event decides which bytes the client gets for an event of the answer: see relay.Follower.
func (t *Task) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if t.blind || e.Oversized() {
		t.unseen = true
		return append(t.Release(out), e.Raw...), false
	}
	held := t.withheld
	defer func() {
		if p := recover(); p != nil {
			t.bug(p, held)
			rest, enough = append(t.Release(out), e.Raw...), false
		}
	}()
	if t.leg != nil {
		e = t.leg.Recounted(e)
	}
	return t.plan.Event(t, e, out, at)
}

// maxWithheld bounds the bytes of events that a task withholds.
const maxWithheld = 64 << 10

// Withhold keeps an event from the client until Release. Beyond 64 KiB all withheld events and e go
// out at once, and so does the rest of the leg's answer.
func (t *Task) Withhold(e sse.Event, out []byte) (rest []byte) {
	if t.open || len(t.withheld)+len(e.Raw) > maxWithheld {
		t.open = true
		return append(t.Release(out), e.Raw...)
	}
	t.withheld = append(t.withheld, e.Raw...)
	if !sse.EndsBlank(e.Raw) { // the last event of a stream may lack its blank line, and another event may follow now
		t.withheld = append(t.withheld, "\n\n"...)
	}
	return out
}

// Release appends the withheld events to out.
func (t *Task) Release(out []byte) []byte {
	out = append(out, t.withheld...)
	t.withheld = nil
	return out
}

// Read reads an event of the running leg. keep says whether the event is for the client.
func (t *Task) Read(e sse.Event, at time.Time) (keep bool) { return t.leg.Event(e, at) }

// Show appends to out what the client gets of an event that Read has kept. If another node may go
// on with the stream, Show notes what that node needs.
func (t *Task) Show(e sse.Event, out []byte) []byte {
	if p, ok := t.plan.(*Resumed); ok && !e.IsDone() {
		return p.stream.First(e, out)
	}
	return append(out, e.Raw...)
}

// anew says that an attempt of the running leg begins. The client has got nothing of earlier ones.
func (t *Task) anew() {
	if p, ok := t.plan.(*Resumed); ok {
		p.stream.Restart()
	}
}

// Held notes that the client holds up the running leg's answer, or no longer does.
func (t *Task) Held(held bool, at time.Time) { t.leg.Held(held, at) }

// Piece looks at a piece of an answer that is not a stream. whole says that the piece is the whole
// answer.
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

// End decides what follows the running leg's answer, which has ended with o: see relay.Follower.
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

// forgo says that no further leg will follow. The request's body is freed.
func (t *Task) forgo() {
	t.follows = false
	t.Request.Release()
}

// Broke notes that the running leg has failed with err and another leg follows. If that one cannot
// go on, the stream ends with the error of the first failure.
func (t *Task) Broke(err error) {
	if t.broke == nil {
		t.broke = err
	}
}

// Mended says that the plan has completed a stream that its node has broken off.
func (t *Task) Mended() bool { return t.mended }

// Next runs legs until one of them continues the client's stream.
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

// bug reports p. The plan is not called again. The events withheld before the bug are still sent.
func (t *Task) bug(p any, withheld []byte) {
	t.blind, t.withheld = true, withheld
	t.planner.parts.Metrics.Bug(t.planner.parts.Logger, "following an answer", p)
}

// Failure returns the error that ends a begun stream that err has broken.
func (t *Task) Failure(err error) *apierror.Error {
	if t.broke != nil {
		err = t.broke
	}
	return t.planner.parts.Legs.Failure(t.Request, err, t.total().events)
}

// Finish ends the task after any outcome and forgets its request. o is the end of the answer, if an
// answer came. No goroutine may still end the request's Life.
func (t *Task) Finish(o relay.Outcome) {
	defer t.reset()
	if l := t.leg; l != nil {
		t.leg = nil
		l.Finish(t.outcome(o))
	}
}

// outcome returns the end of the last leg's answer, if the client's answer ended with o.
func (t *Task) outcome(o relay.Outcome) relay.Outcome {
	if !t.shown || t.ended == relay.Enough {
		return t.ended
	}
	return o
}

// reset clears everything but memory.
func (t *Task) reset() {
	r, resumed := t.Request, t.resumed
	r.Reset()
	if resumed != nil {
		resumed.reset()
	}
	*t = Task{Request: r, resumed: resumed}
}

// Attempts returns the number of exchanges with nodes so far, in all legs.
func (t *Task) Attempts() int { return t.total().attempts }

// Node returns the answering node, or "", and how many of the prompt's leading blocks were believed
// to be there.
func (t *Task) Node() (id string, matched, blocks int) {
	if t.leg == nil {
		return "", 0, 0
	}
	return t.leg.NodeID(), t.leg.Matched(), t.leg.Blocks()
}

// PrefillNode returns the node that computed the prompt for the answering node, and its time for
// that; "" if there is none.
func (t *Task) PrefillNode() (id string, took time.Duration) {
	if t.leg == nil {
		return "", 0
	}
	return t.leg.PrefillNode()
}

// Account sums up a task for the access log.
type Account struct {
	Model    string // canonical; empty if unknown
	Node     string // the answering node; empty if none
	Asked    string // the answering or last asked node; empty if none
	Attempts int    // of all legs
	Matched  int    // leading blocks believed to be at the answering node
	Blocks   int    // full blocks of the prompt
	Counted  int64  // tokens of the prompt, if the model's tokenizer has counted them; 0: unknown
	TTFT     time.Duration
	Expected time.Duration // TTFT as it was expected; 0: nothing was expected
	Queued   time.Duration // in the queue, of all legs
	Usage    usage.Counts  // of the legs whose answers went to the client
	Events   int64         // of their streams
	Cause    string        // the metrics' word for the last failed attempt
	Resumed  string        // how another node went on with the stream; empty: none did
	Cascade  Steps
}

// Account sums up the task so far. o is the end of the client's answer, if it has ended.
func (t *Task) Account(o relay.Outcome) Account {
	l, all := t.leg, t.total()
	a := Account{Attempts: all.attempts, TTFT: all.ttft, Expected: all.expected, Queued: all.queued,
		Usage: all.usage, Events: all.events, Cascade: t.Steps()}
	if t.resumed != nil {
		a.Resumed = t.resumed.how()
	}
	if l != nil {
		a.Model, a.Node, a.Asked, a.Cause = l.Served(), l.NodeID(), l.Asked(), l.Cause(t.outcome(o))
		a.Matched, a.Blocks, a.Counted = l.Matched(), l.Blocks(), l.Counted()
	}
	if all.shown { // the prompt of a leg that goes on has the answer so far
		a.Counted = all.counted
	}
	a.Cause, a.Asked = cmp.Or(a.Cause, all.cause), cmp.Or(a.Asked, all.asked)
	return a
}

// Direct answers with one leg. A request that continues a stored response goes to the node that
// stores the response.
type Direct struct{ OneLeg }

// Answer implements Plan.
func (Direct) Answer(t *Task) *apierror.Error {
	if previous := t.Request.Scan.PreviousResponseID; len(previous) > 0 {
		node, err := t.planner.holder(t.Request, previous)
		if err != nil {
			return err
		}
		return t.Run(leg.Question{Node: node, Bond: leg.Continued}, t.Client)
	}
	q, err := t.planner.parts.Legs.Wanted(t.Request)
	if err != nil {
		return err
	}
	return t.Run(q, t.Client)
}

// Stored answers a request about a stored response. Stored asks the node that stores the response.
type Stored struct {
	OneLeg
	ID []byte // valid until Answer has returned
}

// Answer implements Plan.
func (s Stored) Answer(t *Task) *apierror.Error {
	t.obstacle = "api"
	node, err := t.planner.holder(t.Request, s.ID)
	if err != nil {
		return err
	}
	return t.Run(leg.Question{Node: node, Bond: leg.Stored}, t.Client)
}
