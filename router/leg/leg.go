package leg

import (
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/traces"
	"github.com/cognitora/dataplane/router/trust"
	"github.com/cognitora/dataplane/router/where"
)

// Question is what a leg asks of the fleet. The zero value asks any node that serves the request's
// model for an answer.
type Question struct {
	Model []byte // a model's name or alias; nil: the request's own
	Work  Work   // the kind of work for the node
	Bond  Bond   // whether only Node may be asked, and why
	Node  string // id of the bound node; meaningless for a Free leg
	// Rank is the number of the only data-parallel rank that may be asked, if one is given. RankBy
	// is the field or header that gives it.
	Rank   policy.Optional[uint32]
	RankBy string
	// Allowed are the workers that a Free or Named leg may ask; nil: all. AllowedBy is the field or
	// header that names them.
	Allowed   nvext.Workers
	AllowedBy string
	// Filter says whether a node may be asked; nil: any node. Filter is called for each node at
	// each pick. The goroutine of Dispatcher.Run calls it with locks held, so it must return at
	// once and change nothing.
	Filter func(n *fleet.Node) bool
	// Constraints are about the labels and experts of the node.
	Constraints Constraints
	// Edit changes the body, in addition to the model's name; nil: no change. Edit is called for
	// each attempt with the client's original body.
	Edit func(e *scan.Edits)
	// EditFor is Edit for changes that depend on the node; nil: no change. EditFor comes after
	// Edit, and does not count for a node that computes the prompt for another one.
	EditFor func(e *scan.Edits, n *fleet.Node)
	// Alone says that the answering node computes the prompt itself.
	Alone bool
	// Continues says that the answer continues one that the client has begun to receive. The
	// continuing answer's first event is then not the client's first event. plan.Task.Run sets
	// Continues.
	Continues bool
	// Further says that nodes have been asked in earlier legs of the request. A further leg is not
	// sent if nothing is left of the client's time, or if the first token is expected later, by
	// speeds that answers have taught. plan.Task.Run sets Further.
	Further bool
	Step    int // of a cascade, from 1; 0: none; plan.Task.Run sets Step, for traces
}

// Bond is the reason why a leg may ask one node only.
type Bond uint8

// These are the bonds.
const (
	Free      Bond = iota
	Named          // the client has named the node
	Continued      // the node stored the response that the request continues
	Stored         // the node stored the requested response; it is asked in any state
)

// Wanted returns the question of a client's request: for any node, for the named node, or for the
// allowed nodes. The client may name a node by its id or its number.
func (d *Dispatcher) Wanted(r *request.Request) (Question, *apierror.Error) {
	q := Question{Allowed: r.Allowed()}
	if x := r.Nvext; x != nil {
		q.Constraints = Constraints{
			Required: x.RequiredTaints, Preferred: x.PreferredTaints,
			Experts: x.MoE.Experts, Strict: len(x.MoE.Experts) > 0 && !x.MoE.FallbackToUnlabeled,
		}
		q.Rank, q.RankBy, q.AllowedBy = x.DPRank, x.DPRankBy, x.AllowedBy
	}
	id, by := r.Worker()
	if id == "" {
		return q, nil
	}
	q.Node, q.Bond = id, Named
	if n := d.fleet.Load().Worker(id); n != nil {
		if q.Node = n.ID; q.Allowed != nil && !q.Allowed.Has(n.ID, n.Number()) {
			return q, errNotAllowed(by, q.AllowedBy)
		}
	}
	return q, nil
}

// Leg is one question to the fleet with its outcome and its scratch memory. Get one from
// Dispatcher.Leg, call Do, let the place take the answer, and call Finish. One goroutine at a time
// works on a leg. Other goroutines call GiveUp and Prefilled, and for a hand-over callOff and
// unpair.
type Leg struct {
	Question
	Request *request.Request
	Reading answer.Reading // of the answer

	// These fields hold the outcome.
	Attempts int
	TTFT     time.Duration // from the request's arrival to the first sign of the answer; 0: there was none

	d     *Dispatcher
	place answer.Place
	model *servedModel
	pool  *pool
	began time.Time
	subject
	permit admission.Permit
	turn   turn
	picks  picks
	tries  tries
	attempts
	wait patience.Attempt
	lookout
	out outgoing
	handing
}

// attempts are the attempts of a leg that have not ended.
type attempts struct {
	slots [2]attempt
	kept  *attempt // an answer to pass on if no node gives a better one
	now   *attempt // running, or gave the answer; set under the lookout's lock
}

// handing says how the prompt of the leg's last attempt is computed.
type handing struct {
	way  Way
	hand *hand // nil: by the answering node in any case
}

// tries counts the attempts of a leg so far.
type tries struct {
	asked  []*member
	failed []failure // 5xx answers, while no node has answered better
	resets []reset   // broken connections
	cause  string    // the metric's word for the last failed attempt
	spare  int       // further nodes that may be asked
	had    int       // failed nodes that may have received the request
	paid   bool      // the retry budget has paid for the next attempt
	broke  bool      // the retry budget was spent
	stored bool      // the node of the response's id has been recorded
	until  time.Time // the answer must have ended by then; zero: the model's limits hold alone
	rushed bool      // until follows from the client's deadline

	excused bool      // the client's deadline has ended the last attempt, and that is no failure of the node
	fits    time.Time // no node is asked whose first token is expected later; zero: any may be

	span    *traces.Leg // of the leg; nil: the request is not recorded
	refused string      // code of the router's own error; empty: none
}

var legs = sync.Pool{New: func() any { return newLeg() }}

func newLeg() *Leg { return &Leg{subject: subject{prompt: new(where.Prompt)}} }

// Leg returns a leg of r with question q, whose answer goes to place.
func (d *Dispatcher) Leg(r *request.Request, q Question, place answer.Place) *Leg {
	l := legs.Get().(*Leg)
	l.d, l.Request, l.Question, l.place = d, r, q, place
	return l
}

// recycle frees the leg's memory for another request.
func (l *Leg) recycle() {
	l.reset()
	legs.Put(l)
}

// reset clears everything but scratch memory. reset assigns field by field, because a literal that
// reads the old value would be built beside it and copied.
func (l *Leg) reset() {
	l.prompt.Reset()
	l.out.edits.Reset(nil, nil)
	prompt, edits, body, more := l.prompt, l.out.edits, emptied(l.out.request.Body), l.out.more[:0]
	cands, able, out := emptied(l.picks.cands), l.picks.able[:0], l.picks.out[:0]
	scratch, times := l.picks.asked.Scratch[:0], emptied(l.picks.times)
	asked, failed, resets := emptied(l.tries.asked), emptied(l.tries.failed), emptied(l.tries.resets)
	*l = Leg{}
	l.prompt, l.out.edits, l.out.request.Body, l.out.more = prompt, edits, body, more
	l.picks.cands, l.picks.able, l.picks.out, l.picks.asked.Scratch = cands, able, out, scratch
	l.picks.times = times
	l.tries.asked, l.tries.failed, l.tries.resets = asked, failed, resets
}

// emptied returns s without its elements. emptied clears all of the memory, because an earlier
// attempt may have left data behind the end.
func emptied[T any](s []T) []T {
	clear(s[:cap(s)])
	return s[:0]
}

// Do finds a node that answers and waits for the first sign of its answer: the head and, for a
// stream, the first body event. Do returns nil once the place has taken an answer, which may be an
// engine's own error. Otherwise Do returns the router's own error. Call Finish in either case.
func (l *Leg) Do() *apierror.Error {
	l.traceLeg()
	return l.traceError(l.do())
}

// do is Do without the leg's span.
func (l *Leg) do() *apierror.Error {
	d := l.d
	if l.began = l.Request.Received; l.Request.Life.Started() {
		l.began = time.Now()
	}
	if l.Further {
		if l.tries.fits = l.Request.Deadline; l.Request.Expired() {
			return ErrDeadline
		}
	}
	at, err := l.first()
	d.metrics.Pick.Observe((time.Since(l.began) - l.turn.waited).Seconds())
	if err != nil {
		return err
	}
	return l.run(at)
}

// run asks the node at place at, which has been picked, and others after it, until one answers.
func (l *Leg) run(at int) *apierror.Error {
	l.Request.Life.Start()
	for {
		l.prompt.Promote(at, l.model.name, l.promotes(at))
		v := l.try()
		if v == answered {
			l.settleFailed()
			l.drop(l.kept)
			return nil
		}
		l.tries.spare = v.further(l.tries.spare)
		if l.needsBreath(v) && !l.Request.Life.Wait(breath) {
			return l.giveIn(abandoned)
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
	if err := l.start(); err != nil {
		return 0, err
	}
	if l.d.waiting.Queue != nil {
		return l.pickInTurn()
	}
	return l.choose(l.began)
}

// start gets the leg ready for its first pick.
func (l *Leg) start() *apierror.Error {
	if err := l.admit(); err != nil {
		return err
	}
	l.look()
	l.identify()
	if err := l.considers(); err != nil {
		return err
	}
	if l.way != Undecided {
		l.d.ways[l.way].Inc()
	}
	l.tries.spare = l.d.o.MaxNodes
	return nil
}

// holder returns the place of the node that stores the requested response. The place is in the
// first model by name that the node serves.
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
			l.prompt.Unknown(len(p.ranks))
			p.members[at].rank.AcquireAlways()
			l.spare().member = p.members[at]
			return at, nil
		}
	}
	return 0, errHolder(l.Node, "serves no model now")
}

// admit resolves the model. admit refuses the request at once if no pool of the model's nodes has
// room, unless the leg may wait.
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
	if len(l.pool.members) > 0 && !l.queues() {
		return l.modelFull()
	}
	return nil
}

func (l *Leg) resolve() *apierror.Error {
	name := l.Question.Model
	if name == nil {
		name = l.Request.Scan.Model
	}
	t := l.d.current()
	view, err := ResolveFor(l.Request.Who, t.snap, name)
	if err != nil {
		return err
	}
	l.model = t.models[view.Name]
	l.pool = &l.model.pools[l.Work]
	l.picks.api = endpoint(l.Request)
	return nil
}

// another picks the node to ask after v, if one may be asked.
func (l *Leg) another(v verdict) (at int, ok bool) {
	if !l.mayGoOn() {
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

// giveIn passes on the last kept answer of an engine, or returns the router's own error. giveIn
// does not pass on the error of an unwell node while the healthy nodes are full. The router's error
// then tells the client to try again, and when.
func (l *Leg) giveIn(v verdict) *apierror.Error {
	l.settleFailed()
	if (v == failed500 || v == overloaded) && l.crowded(time.Now()) {
		if l.picks.found.has(overBusy) {
			return l.d.overload
		}
		return errAllBusy
	}
	if v < tooOld && l.kept != nil {
		return l.fallBack()
	}
	return l.errorAfter(v)
}

// errorAfter returns the router's own error if the last attempt ended in v and no node has
// answered.
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
	case v == orphaned || v == unpaired || v == lost:
		return l.errOrphaned()
	case l.Bond == Continued || l.Bond == Stored:
		return errHolder(l.Asked(), "does not answer")
	}
	return l.unanswered()
}

// crowded tells whether the last answer is an unwell node's error, and the healthy nodes were not
// asked because they are full.
func (l *Leg) crowded(now time.Time) bool {
	if l.kept == nil || l.kept.member.node.Health.State() == health.Healthy || l.others(now) {
		return false
	}
	screen := l.screen(now)
	for _, n := range l.pool.members {
		if ok, _ := n.node.Eligible(now); ok && l.excludes(n, screen) == passes && !n.node.Health.Suspect() {
			return true
		}
	}
	return false
}

// unanswered returns the error of a leg that no node has answered.
func (l *Leg) unanswered() *apierror.Error {
	e := *errBackend
	nodes := "1 node was"
	if n := len(l.tries.asked); n != 1 {
		nodes = fmt.Sprintf("%d nodes were", n)
	}
	bound := fmt.Sprintf("retry.max_nodes allows %d further nodes, and one after a connection that broke for this "+
		"request alone", l.d.o.MaxNodes)
	if l.tries.broke {
		bound = "no other was asked, since so many requests were retried in the last 10 s as retry.percent allows"
	}
	e.Message = fmt.Sprintf("%s asked and none answered (last: %s); %s", nodes, l.tries.cause, bound)
	return &e
}

// Event looks at one event of the answer, read at time now, and says whether to pass it on. Event
// is part of answer.Source.
func (l *Leg) Event(e sse.Event, now time.Time) (keep bool) {
	if e.IsDone() || e.Oversized() {
		return true
	}
	if now.Equal(l.Reading.Last) {
		l.now.forecast.together++
	}
	if l.now.awaits && !announces(e) {
		l.now.awaits = false
		l.computed(l.now, now)
	}
	keep = l.Reading.Event(l.Request.API, e, now, l.out.asksUsage)
	l.wait.Progress(now)
	l.grew(l.Reading.Events, now)
	l.observe(e.Data)
	return keep
}

// grew notes that the answer has this many events, which count as tokens.
func (l *Leg) grew(events int64, now time.Time) {
	if events%gapsEvery == 1 {
		l.now.member.node.Health.NoteProgress()
		l.tokensCame(l.now, events, now)
	} else if l.now.forecast.lookDue(events, now) {
		l.tokensCame(l.now, events, now)
	}
	l.now.cost.Heard(now)
	if l.now.grows && events%prefix.BlockTokens == 1 {
		l.countBlocks(events)
	}
}

// countBlocks counts the blocks of an answer that has this many tokens. In Dynamo's cost, blocks of
// an answer of expected length count with the share that is still to come. In mode predicted they
// count whole, because a step reads all of them until the end.
func (l *Leg) countBlocks(tokens int64) {
	expected := l.Request.ExpectedOutput()
	if l.foresees() {
		expected = 0
	}
	l.now.cost.Generated(tokens, expected)
}

// Piece looks at a piece of an answer that is not a stream. whole says that the piece is the whole
// answer.
func (l *Leg) Piece(piece []byte, whole bool) {
	if !whole {
		l.wait.Progress(time.Now())
		return
	}
	l.Reading.Document(piece)
	l.observe(piece)
}

// observe looks at the data of an event, or at a whole answer that is not a stream.
func (l *Leg) observe(doc []byte) {
	l.hear(doc)
	l.store(doc)
}

// store records how the response in a document or event was made.
func (l *Leg) store(doc []byte) {
	if l.Request.API != scan.Responses || l.tries.stored {
		return
	}
	if id := usage.ResponseID(doc); id != nil {
		l.d.stored.Set(id, affinity.Made{Node: l.NodeID(), Tenant: trust.TenantOf(l.Request.Who), Model: l.Served()})
		l.tries.stored = true
	}
}

// NodeID returns the answering node, or "" if there is none.
func (l *Leg) NodeID() string {
	if l.now == nil || l.now.member == nil {
		return ""
	}
	return l.now.member.node.ID
}

// Asked returns the answering node. If no node answers, Asked returns the last node asked, or "".
func (l *Leg) Asked() string {
	asked := l.tries.asked
	if id := l.NodeID(); id != "" || len(asked) == 0 {
		return id
	}
	return asked[len(asked)-1].node.ID
}

// Served returns the canonical name of the model, or "" if it is unknown.
func (l *Leg) Served() string {
	if l.model == nil {
		return ""
	}
	return l.model.name
}

// Blocks returns the number of full blocks of the prompt.
func (l *Leg) Blocks() int { return l.prompt.Blocks }

// Counted returns the tokens of the prompt, if the model's tokenizer has counted them; 0: unknown.
func (l *Leg) Counted() int64 { return l.prompt.Counted() }

// Matched returns the number of leading blocks believed to be at the answering node.
func (l *Leg) Matched() int {
	if l.now == nil {
		return 0
	}
	return l.now.matched
}

// ExpectedTTFT returns TTFT as it was expected when the answering node was sent the request.
// ExpectedTTFT returns 0 if nothing was expected, and if the time of the first token is unknown: of
// an answer that is no stream, and of the API Responses.
func (l *Leg) ExpectedTTFT() time.Duration {
	if !l.Delivered() || l.now.forecast.took == 0 {
		return 0
	}
	sent := l.now.sent
	if l.now.split {
		sent = l.hand.last.began
	}
	return sent.Sub(l.Request.Received) + time.Duration(l.now.forecast.ttft*float64(time.Second))
}

// Delivered says whether the place has taken an answer.
func (l *Leg) Delivered() bool { return l.now != nil && l.now.taken }

// Cause returns the metrics' word for the last failed attempt, or "" if none has failed. o is the
// end of the answer, if an answer came.
func (l *Leg) Cause(o relay.Outcome) string {
	if kind := l.broke(o); kind != "" {
		return kind
	}
	return l.tries.cause
}

// broke returns the metrics' word for how the node broke off a begun answer that ended with o.
// broke returns "" if the node did not break the answer off.
func (l *Leg) broke(o relay.Outcome) string {
	if !l.Delivered() || l.Request.Life.Ended() != request.None || l.Request.Expired() {
		return ""
	}
	if l.Continues && (!l.now.streams || l.now.status >= 300) {
		return "" // the answer is complete but does not continue the client's stream
	}
	switch o {
	case relay.UpstreamFailed:
		return "cut"
	case relay.IdleTimeout:
		return "idle"
	}
	return ""
}
