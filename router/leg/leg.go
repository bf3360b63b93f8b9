package leg

import (
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
)

// Question is what a leg asks of the fleet. Its zero value asks any node that serves the request's
// model for an answer.
type Question struct {
	Model []byte // a model's name or alias; nil: the request's own
	Work  Work   // what the node is to do
	Bond  Bond   // whether only Node may be asked, and why
	Node  string // the id of that node; of no meaning to a leg that is Free
	// Filter says whether a node may be asked; nil: any. It is called for each node at each pick,
	// and from the goroutine of Dispatcher.Run with locks held: it only looks, and at once.
	Filter func(n *fleet.Node) bool
	// Edit changes the body, besides the model's name; nil: as it came. It is called for each
	// attempt, with the body as the client has sent it.
	Edit func(e *scan.Edits)
	// Continues says that the answer goes on with one that the client has begun to get: its first
	// event is not the client's. plan.Task.Run sets it.
	Continues bool
}

// Bond is why a leg may ask one node only.
type Bond uint8

// The bonds.
const (
	Free      Bond = iota
	Named          // the client has named the node
	Continued      // the node stored the response that the request goes on from
	Stored         // the node stored the response that is asked for: it is asked whatever its state
)

// Pinned is the question of a client that has named its node; empty: any.
func Pinned(node string) Question {
	if node == "" {
		return Question{}
	}
	return Question{Node: node, Bond: Named}
}

// Leg is one question to the fleet and what came of it, with all the scratch memory that it needs.
// Take one with Dispatcher.Leg, call Do, let the place take what it brought, and end it with
// Finish. One goroutine at a time works on a leg; GiveUp and Prefilled come from another.
type Leg struct {
	Question
	Request *request.Request
	Reading answer.Reading // of the answer

	// What came of it.
	Attempts int
	TTFT     time.Duration // since the request came, until the first sign of the answer; 0: there was none

	d      *Dispatcher
	place  answer.Place
	model  *servedModel
	pool   *pool
	began  time.Time
	prompt *where.Prompt
	permit admission.Permit
	picks  picks
	tries  tries
	slots  [2]attempt
	kept   *attempt // an answer that is passed on if nobody gives a better one
	now    *attempt // under way, or gave the answer; set under the lookout's lock
	wait   patience.Attempt
	lookout
	out outgoing
}

// tries is what a leg's attempts have come to so far.
type tries struct {
	asked  []*member
	failed []failure // nobody has answered better yet
	resets []reset   // of nodes that broke off
	cause  string    // how the last attempt that failed did, in a word
	spare  int       // further nodes that may be asked
	had    int       // nodes that may have had the request and failed
	paid   bool      // the retry budget has been asked for the next attempt
	broke  bool      // it had nothing left
	stored bool      // the id of the response has been noted
}

var legs = sync.Pool{New: func() any { return newLeg() }}

func newLeg() *Leg { return &Leg{prompt: new(where.Prompt)} }

// Leg returns a leg of r that asks q and has its answer go to place.
func (d *Dispatcher) Leg(r *request.Request, q Question, place answer.Place) *Leg {
	l := legs.Get().(*Leg)
	l.d, l.Request, l.Question, l.place = d, r, q, place
	return l
}

// recycle lets another request have the leg.
func (l *Leg) recycle() {
	l.reset()
	legs.Put(l)
}

// reset forgets all but scratch memory. A literal that reads the old value would be built beside it
// and copied.
func (l *Leg) reset() {
	l.prompt.Reset()
	l.out.edits.Reset(nil, nil)
	prompt, edits, body := l.prompt, l.out.edits, emptied(l.out.request.Body)
	cands, able := emptied(l.picks.cands), l.picks.able[:0]
	asked, failed, resets := emptied(l.tries.asked), emptied(l.tries.failed), emptied(l.tries.resets)
	*l = Leg{}
	l.prompt, l.out.edits, l.out.request.Body = prompt, edits, body
	l.picks.cands, l.picks.able = cands, able
	l.tries.asked, l.tries.failed, l.tries.resets = asked, failed, resets
}

// emptied is s without its elements. All of its memory is cleared: behind its end may be what an
// earlier attempt has left.
func emptied[T any](s []T) []T {
	clear(s[:cap(s)])
	return s[:0]
}

// Do finds the node that answers and waits for the first sign of its answer: the head and, for a
// stream, the first body event. It returns nil when the place has taken an answer, an engine's own
// error among them, or the error that the router gives itself. Finish must follow in either case.
func (l *Leg) Do() *apierror.Error {
	d := l.d
	if l.began = l.Request.Received; l.Request.Life.Started() {
		l.began = time.Now()
	}
	at, err := l.first()
	d.metrics.Pick.Observe(time.Since(l.began).Seconds())
	if err != nil {
		return err
	}
	l.Request.Life.Start()
	for {
		l.prompt.Promote(at, l.model.name)
		v := l.try(at)
		if v == answered {
			l.settleFailed()
			l.drop(l.kept)
			return nil
		}
		next, ok := l.another(v)
		if !ok {
			return l.giveIn(v)
		}
		at = next
	}
}

// first picks the first node.
func (l *Leg) first() (at int, err *apierror.Error) {
	if l.Bond == Stored {
		return l.holder()
	}
	if err := l.admit(); err != nil {
		return 0, err
	}
	l.d.where.Find(l.prompt, l.Request, l.model.name, l.model.seed, l.pool.nodes)
	l.tries.spare = l.d.options.MaxNodes
	return l.choose(l.began)
}

// holder takes the node that alone can know what the request asks for, in the first model by name
// that it serves.
func (l *Leg) holder() (at int, err *apierror.Error) {
	t := l.d.current()
	n := t.snap.Node(l.Node)
	for _, view := range t.snap.Models() {
		m := t.models[view.Name]
		p := &m.pools[l.Work]
		if at := p.place(n); at >= 0 {
			l.model, l.pool = m, p
			if err := l.enter(p.members[at]); err != nil {
				return 0, err
			}
			l.prompt.Unknown(len(p.nodes))
			n.AcquireAlways()
			l.spare().node = p.members[at]
			return at, nil
		}
	}
	return 0, errHolder(l.Node, "serves no model now")
}

// admit resolves the model and refuses at once what no pool of its nodes has room for.
func (l *Leg) admit() *apierror.Error {
	if err := l.resolve(); err != nil {
		return err
	}
	if l.d.gate.Full() {
		return errGlobalFull
	}
	for _, n := range l.pool.members {
		if !n.gate.Full() {
			return nil
		}
	}
	if len(l.pool.members) > 0 {
		return errModelFull
	}
	return nil
}

func (l *Leg) resolve() *apierror.Error {
	name := l.Question.Model
	if name == nil {
		name = l.Request.Scan.Model
	}
	t := l.d.current()
	view, err := Resolve(t.snap, name)
	if err != nil {
		return err
	}
	l.model = t.models[view.Name]
	l.pool = &l.model.pools[l.Work]
	return nil
}

// another picks the node to ask after v, if one may be asked.
func (l *Leg) another(v verdict) (at int, ok bool) {
	if !l.mayGoOn(v) {
		return 0, false
	}
	if !l.tries.paid && !l.d.budget.Allow() {
		l.d.metrics.RetriesRefused.Inc()
		l.tries.broke = true
		return 0, false
	}
	l.tries.paid = false
	at, err := l.choose(time.Now())
	if err != nil {
		return 0, false
	}
	l.tries.spare--
	l.d.metrics.Retries.WithLabelValues(v.String()).Inc()
	return at, true
}

// giveIn passes on the last answer that an engine gave, or else says what happened. The error of a
// node that is not well is not passed on where the others are full: ours tells the client that it
// is worth another try, and when.
func (l *Leg) giveIn(v verdict) *apierror.Error {
	l.settleFailed()
	if (v == failed500 || v == overloaded) && l.crowded(time.Now()) {
		return errAllBusy
	}
	if v < tooOld && l.kept != nil {
		return l.fallBack()
	}
	return l.errorAfter(v)
}

// errorAfter is the router's own error where the last attempt came to v and nobody has answered.
func (l *Leg) errorAfter(v verdict) *apierror.Error {
	switch {
	case v == abandoned:
		return Ended(l.Request)
	case v == tooOld:
		return errTooOld
	case v == tooLong:
		return errTooLong
	case v == unfit:
		return errBody
	case v == late || l.Request.Expired():
		return ErrDeadline
	case l.Bond == Continued || l.Bond == Stored:
		return errHolder(l.Asked(), "does not answer")
	}
	return l.unanswered()
}

// crowded tells whether the last answer is the error of a node that is not well, and the others
// that are were not asked because they are full.
func (l *Leg) crowded(now time.Time) bool {
	if l.kept == nil || l.kept.node.Health.State() == health.Healthy || l.others(now) {
		return false
	}
	for _, n := range l.pool.members {
		if ok, _ := n.Eligible(now); ok && !l.excludes(n) && !n.Health.Suspect() {
			return true
		}
	}
	return false
}

// unanswered is the error for a leg that no node has answered.
func (l *Leg) unanswered() *apierror.Error {
	e := *errBackend
	nodes := "1 node was"
	if n := len(l.tries.asked); n != 1 {
		nodes = fmt.Sprintf("%d nodes were", n)
	}
	bound := fmt.Sprintf("retry.max_nodes allows %d further nodes, and one after a connection that broke for this "+
		"request alone", l.d.options.MaxNodes)
	if l.tries.broke {
		bound = "no other was asked, since so many requests were retried in the last 10 s as retry.percent allows"
	}
	e.Message = fmt.Sprintf("%s asked and none answered (last: %s); %s", nodes, l.tries.cause, bound)
	return &e
}

// Event looks at one event of the answer, read at time now, and tells whether it is passed on. It
// is a part of answer.Source.
func (l *Leg) Event(e sse.Event, now time.Time) (keep bool) {
	if e.IsDone() || e.Oversized() {
		return true
	}
	keep = l.Reading.Event(l.Request.API, e, now, l.out.asksUsage)
	l.wait.Progress(now)
	if l.Reading.Events%32 == 1 {
		l.now.node.Health.NoteProgress()
	}
	l.store(e.Data)
	return keep
}

// Piece looks at a piece of an answer that is not a stream; whole: it is all of it.
func (l *Leg) Piece(piece []byte, whole bool) {
	if !whole {
		l.wait.Progress(time.Now())
		return
	}
	l.Reading.Document(piece)
	l.store(piece)
}

// store notes which node made the response of a document or event.
func (l *Leg) store(doc []byte) {
	if l.Request.API != scan.Responses || l.tries.stored {
		return
	}
	if id := usage.ResponseID(doc); id != nil {
		l.d.stored.Set(id, l.NodeID())
		l.tries.stored = true
	}
}

// NodeID is the node that answers, empty if none does.
func (l *Leg) NodeID() string {
	if l.now == nil || l.now.node == nil {
		return ""
	}
	return l.now.node.ID
}

// Asked is the node that answers or, where none does, the one that was asked last; empty if none
// was.
func (l *Leg) Asked() string {
	asked := l.tries.asked
	if id := l.NodeID(); id != "" || len(asked) == 0 {
		return id
	}
	return asked[len(asked)-1].ID
}

// Served is the canonical name of the model, empty if it is not known.
func (l *Leg) Served() string {
	if l.model == nil {
		return ""
	}
	return l.model.name
}

// Blocks is the number of full blocks of the prompt.
func (l *Leg) Blocks() int { return l.prompt.Blocks }

// Matched is the number of leading blocks that the answering node was believed to hold.
func (l *Leg) Matched() int {
	if l.now == nil {
		return 0
	}
	return l.now.matched
}

// Delivered tells whether the place has taken an answer.
func (l *Leg) Delivered() bool { return l.now != nil && l.now.taken }

// Cause is how the last attempt that failed did, in a word as the metrics have it; empty if none
// has. o is how the answer ended, if there was one.
func (l *Leg) Cause(o relay.Outcome) string {
	if kind := l.broke(o); kind != "" {
		return kind
	}
	return l.tries.cause
}

// broke is how the node broke off an answer that had begun and ended with o, in a word as the
// metrics have it; empty if it did not.
func (l *Leg) broke(o relay.Outcome) string {
	if !l.Delivered() || l.Request.Life.Ended() != request.None || l.Request.Expired() {
		return ""
	}
	if l.Continues && (!l.now.streams || l.now.status >= 300) {
		return "" // it is whole, but does not go on with the client's stream
	}
	switch o {
	case relay.UpstreamFailed:
		return "cut"
	case relay.IdleTimeout:
		return "idle"
	}
	return ""
}
