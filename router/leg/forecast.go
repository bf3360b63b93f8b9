package leg

import (
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/scan"
)

// forecasts are what a dispatcher has learned about the times of engines and the lengths of
// answers, for mode predicted. The dispatcher's rebuilding guards kinds and idle.
type forecasts struct {
	kinds   map[kindKey]*predict.Kind
	idle    map[kindKey]time.Time // since when these kinds have no engine
	lengths predict.Lengths
}

// kindKey names the engines that are expected to be equally fast with a model.
type kindKey struct {
	model string
	like  likeness
}

// likeness is what tells engines apart.
type likeness struct {
	engine, dtype, device, gpu string
	tp, vramGiB                int
}

func likenessOf(i *fleet.Info) likeness {
	return likeness{i.Engine, i.DType, i.Device, i.GPUModel, i.TP, int(i.VRAMBytes >> 30)}
}

// timedAs returns the model whose times the model of view has. A LoRA adapter has those of its
// base.
func timedAs(view *fleet.ModelView) string {
	if view.Base != nil {
		return view.Base.Name
	}
	return view.Name
}

// engine returns what is known about the times of a node's engine with a model. The caller holds
// d.rebuilding.
func (d *Dispatcher) engine(n *nodeState, like likeness, view *fleet.ModelView) *predict.Engine {
	key := kindKey{timedAs(view), like}
	e := n.engines[key]
	if e == nil {
		k := d.forecasts.kinds[key]
		if k == nil {
			k = predict.NewKind(d.forecasts.trafficOf(key.model))
			d.forecasts.kinds[key] = k
		}
		if e = predict.NewEngine(k); n.engines == nil {
			n.engines = map[kindKey]*predict.Engine{}
		}
		n.engines[key] = e
	}
	return e
}

// trafficOf returns the traffic of a model, which all kinds of its engines share.
func (f *forecasts) trafficOf(model string) *predict.Traffic {
	for key, k := range f.kinds {
		if key.model == model {
			return k.Traffic()
		}
	}
	return new(predict.Traffic)
}

// foresees says whether the policy of the pick needs expected times.
func (l *Leg) foresees() bool { return l.picks.policy.Mode == policy.Predicted }

// speed returns the speed of n, as far as the policy lets it be learned.
func (l *Leg) speed(n *member) predict.Speed {
	if !l.picks.policy.Predicted.Learn {
		return predict.Untaught()
	}
	return n.engine.Speed()
}

// misses says whether the first token of n, expected in so many seconds from now, would come after
// end, if end is not zero. A speed that no answers have taught counts as fast enough.
func (l *Leg) misses(n *member, first float64, now, end time.Time) bool {
	return !end.IsZero() && l.knows(n) && now.Add(time.Duration(first*float64(time.Second))).After(end)
}

// knows says whether mode predicted expects times of n that answers have taught.
func (l *Leg) knows(n *member) bool {
	return l.foresees() && l.picks.policy.Predicted.Learn && n.engine.Kind().Rates().KnowsFirsts()
}

// timing returns what mode predicted knows about n at now. own is the number of requests of this
// router at n.
func (l *Leg) timing(n *member, own int32, now time.Time) policy.Timing {
	book, load := &n.rank.Book, n.rank.Load()
	pressing, coming := book.WaitingPrompts(), book.Elsewhere()
	t := policy.Timing{
		Speed: l.speed(n), Wait: book.Backlog(now).Seconds(), Overdue: book.Overdue(now).Seconds(),
		Pressing: float64(pressing), Decoding: float64(max(own-pressing-coming, 0)), Coming: float64(coming),
		Blocks: book.Blocks(),
	}
	if load.Others > 0 {
		t.Pressing += float64(load.Waiting)
		t.Wait += float64(load.Waiting) * t.PrefillFactor * (t.Each + t.Prefill(predict.Prompt(book.Mean(), 0)))
		t.Decoding += float64(load.Others - load.Waiting)
		t.Blocks += float64(load.OthersBlocks)
	}
	if own > pressing { // some requests do not wait for their prompt
		silence := standstill(book.Silence(now), t.DecodeFactor*t.Decode(t.Decoding, t.Blocks))
		t.Silent = max(silence-t.Wait-t.Overdue, 0)
	}
	return t
}

// foreseeAll fills in what mode predicted needs to know about the request and the candidates.
func (l *Leg) foreseeAll(now time.Time) {
	p, mayTry, explores, parted := &l.picks, l.mayTry(), l.explores(), l.parted()
	p.times = slices.Grow(p.times[:0], len(p.able))[:len(p.able)]
	for i, at := range p.able {
		c, t, n := &p.cands[i], &p.times[i], l.pool.members[at]
		*t = l.timing(n, c.InFlight, now)
		if idle := t.Pressing+t.Decoding == 0 && !c.Loads; idle && mayTry || explores {
			work := predict.Prompt(l.prompt.Tokens(), p.policy.Score.Tiers.Held(c))
			t.Tried = idle && n.engine.MayTry(&t.Speed, work)
			t.Unproven = explores && n.engine.Kind().Unproven(work)
		}
		if c.SharedCache > c.Host {
			t.Fetch = float64(l.prompt.Reach(int(at)).Fetch)
		}
		if c.Loads {
			t.Load = l.model.adapterLoad.Seconds()
		}
		if l.hand != nil {
			t.Via = l.hand.via(n)
		}
		if parted {
			t.Prompts, t.Lately = n.rank.Book.Demand(now), books.DemandFor.Seconds()
		}
	}
	p.output = l.output()
}

// triesOneIn is the number of requests of which one may try an idle node of a kind whose speed is
// unknown.
const triesOneIn = 8

// explores says whether the request may try such a node.
func (l *Leg) explores() bool { return l.mayTry() && (l.picks.turn>>32)%triesOneIn == 0 }

// mayTry says whether the request may try nodes. Its answer must teach.
func (l *Leg) mayTry() bool {
	set := &l.picks.policy.Predicted
	return set.Learn && set.Explore && l.teaches()
}

// teaches says whether the time of the answer's first token can be told. Engines announce a
// response before they compute it.
func (l *Leg) teaches() bool { return l.showsFirst() && l.Request.API != scan.Responses }

// output returns the expected length of the answer in tokens.
func (l *Leg) output() float64 {
	if !l.Request.Generates() || l.Work == Prefill {
		return 0
	}
	if told := l.Request.ExpectedOutput(); told > 0 {
		return float64(told)
	}
	c := l.class()
	return l.d.forecasts.lengths.Expected(&c)
}

// class returns the classes of the request's answer. Requests of one caller have an equal system
// prompt, or without one an equal first block.
func (l *Leg) class() (c predict.Class) {
	c = predict.Class{Model: l.model.hash, Bound: l.Request.Scan.MaxTokens}
	if len(l.Request.Session) > 0 {
		c.Session = xxhash.Sum64(l.Request.Session)
	}
	if c.Caller = l.Request.Scan.SystemHash; c.Caller != 0 {
		c.Caller ^= l.Request.Scan.Space
		return c
	}
	if keys := l.prompt.Keys(); len(keys) > 0 {
		c.Caller = keys[0]
	}
	return c
}

// forecast is what was expected of an attempt, and how far its answer has been learned from.
type forecast struct {
	first    predict.First // for learning: without the wait for a slot, and for an adapter to load; see clock too
	ttft     float64       // expected seconds until the first token, by the pick
	wait     float64       // of these, for prompts that wait at the node
	via      bool          // another node was expected to compute the prompt
	own      float64       // of ttft, the part of the answering node
	step     float64       // expected seconds between two tokens
	output   float64       // expected tokens of the answer
	took     float64       // seconds until the first token; 0: it has not come, or cannot be told
	prefill  time.Duration // of this prompt alone
	lag      time.Duration // from then to the first token
	held     bool          // the engine has no slot, or loads the adapter first
	events   int64         // of the answer at the last look
	together int64         // events since then that were read together with the one before
	looked   time.Time     // time of the last look; zero: no token has come
	computed time.Duration // prefill of the engine until then
	batch    batch         // of the engine then
	paused   time.Time     // since when the client holds up the answer, the last time that it did
	uneven   bool          // the client has held up events since the last look
}

// made says whether mode predicted chose the attempt's node.
func (f *forecast) made() bool { return f.ttft > 0 }

// foresee notes what the pick expected of an attempt at the candidate pick, with warm of the
// prompt's blocks there.
func (l *Leg) foresee(a *attempt, pick int, warm policy.Warm) {
	t, c, f := &l.picks.times[pick], &l.picks.cands[pick], &a.forecast
	if t.Tried {
		a.member.engine.Tried()
	}
	if t.Unproven {
		a.member.engine.Kind().Tried()
	}
	f.first = predict.First{
		Wait: t.Wait + t.Overdue + warm.Fetch, Ahead: t.Pressing, Step: t.Decode(t.Decoding, t.Blocks),
		Work: predict.Prompt(l.prompt.Tokens(), warm.Held),
	}
	t.Forecast(&f.first)
	expected := l.picks.policy.Expected(l.situation(), pick)
	f.ttft, f.wait, f.step, f.output = expected.First, expected.Wait+t.Overdue, expected.Step, l.picks.output
	f.held = c.Queues() || c.Loads
	if f.via, f.own = expected.Via > 0, f.ttft; f.via {
		f.own = max(f.ttft-expected.Via, 0)
	}
	// 0 means in the book that the time is unknown.
	prefill := t.PrefillFactor*(t.Each+t.Prefill(f.first.Work)) + warm.Fetch
	f.prefill = max(time.Duration(prefill*float64(time.Second)), 1)
	f.lag = max(time.Duration((f.ttft-f.wait)*float64(time.Second))-f.prefill, 0)
}

// firstCame compares the first token of an attempt's answer with its forecast, and learns from it.
func (l *Leg) firstCame(a *attempt, now time.Time) {
	if a.split {
		l.handedCame(a, now)
		return
	}
	f := &a.forecast
	if !l.teaches() {
		return
	}
	if !f.made() {
		if f.first.Expected > 0 && l.picks.policy.Predicted.Learn {
			a.member.engine.LearnFirst(&f.first, now.Sub(a.sent).Seconds(), now)
		}
		return
	}
	f.took = now.Sub(a.sent).Seconds()
	a.cost.Listen(true, now)
	if l.Work == Answer {
		l.model.metrics.FirstCame(f.ttft, f.took)
	}
	a.member.engine.Compare(f.ttft, f.took, now)
	if !l.picks.policy.Predicted.Learn {
		return
	}
	if !f.held {
		a.member.engine.LearnFirst(&f.first, f.took, now)
	}
	f.looked, f.events, f.computed, f.batch = now, 1, a.member.rank.Book.Computed(now), a.member.batch()
}

// gaveUp learns from an attempt that was given up before its first token. The token would have come
// later still, so an attempt that was given up before it was late teaches nothing.
func (l *Leg) gaveUp(a *attempt, now time.Time) {
	f, took := &a.forecast, now.Sub(a.sent).Seconds()
	if !f.made() || a.split || !l.teaches() || f.took > 0 || took <= f.ttft {
		return
	}
	l.model.metrics.FirstCame(f.ttft, took)
	if l.picks.policy.Predicted.Learn && !f.held {
		a.member.engine.LearnFirst(&f.first, took, now)
	}
}

const (
	// gapsEvery is the number of events of an answer between two looks at their spacing.
	gapsEvery = 32
	// gapsFor is the time after which a look comes earlier, and gapsFew the number of events that
	// it needs. So many are enough at the end of a short answer too.
	gapsFor = 2 * time.Second
	gapsFew = 4
	// heldLong is how long a client must hold up an answer to change the spacing of its events.
	heldLong = 20 * time.Millisecond
)

// lookDue says whether a look is due because the events come slowly.
func (f *forecast) lookDue(events int64, now time.Time) bool {
	return events-f.events >= gapsFew && !f.looked.IsZero() && now.Sub(f.looked) >= gapsFor
}

// Held notes that the client holds up the answer, so that the router does not read it, or that the
// router reads on.
func (l *Leg) Held(held bool, at time.Time) {
	if l.now == nil || l.now.forecast.took == 0 {
		return
	}
	l.now.cost.Listen(!held, at)
	f := &l.now.forecast
	if held {
		f.paused = at
	} else if !f.paused.IsZero() && at.Sub(f.paused) >= heldLong {
		f.uneven = true
	}
}

// tokensCame learns from the spacing of the events since the last look. While a client reads
// slowly, the events wait for it. Most are then read together, and tell nothing about the engine.
func (l *Leg) tokensCame(a *attempt, events int64, now time.Time) {
	f := &a.forecast
	if f.looked.IsZero() || events <= f.events {
		return
	}
	if f.together <= (events-f.events)/2 && !f.uneven {
		l.learnGaps(a, events, now)
	}
	f.looked, f.events, f.together, f.computed = now, events, 0, a.member.rank.Book.Computed(now)
	f.uneven, f.batch = false, a.member.batch()
}

// batch is what an engine's decode step works on.
type batch struct{ requests, blocks float64 }

// batch returns the present batch of the member's engine.
func (n *member) batch() batch {
	r, load := n.rank, n.rank.Load()
	return batch{
		float64(max(r.InFlight()-r.Book.WaitingPrompts()-r.Book.Elsewhere(), 1) + load.Others - load.Waiting),
		r.Book.Blocks() + float64(load.OthersBlocks),
	}
}

// learnGaps learns from the time since the last look, in which this number of events came.
func (l *Leg) learnGaps(a *attempt, events int64, now time.Time) {
	f, book, end := &a.forecast, &a.member.rank.Book, a.member.batch()
	a.member.engine.LearnGaps(&predict.Gaps{
		Tokens: float64(events - f.events), Seconds: now.Sub(f.looked).Seconds(),
		Prefill:  max(book.Computed(now)-f.computed, 0).Seconds(),
		Requests: (f.batch.requests + end.requests) / 2, Blocks: (f.batch.blocks + end.blocks) / 2,
	}, now)
}

// endCame learns from the spacing of a short answer's events at the end of the answer, which is
// their first look. tokens are those that the engine counted; 0: unknown. Its last events may have
// none.
func (l *Leg) endCame(a *attempt, events, tokens int64, last time.Time) {
	if tokens > 0 {
		events = min(events, tokens)
	}
	if a.forecast.events == 1 && events > gapsFew {
		l.tokensCame(a, events, last)
	}
}

const (
	// silentSteps is how many expected steps a node's silence must last to count, and silentFrom
	// how long.
	silentSteps = 8
	silentFrom  = 250 * time.Millisecond
	// silentMost bounds what counts.
	silentMost = time.Minute
)

// standstill returns the seconds of a node's silence that count, given the expected time of a step.
// A node that has given no token for some time is expected to give none for as long again.
func standstill(silence time.Duration, step float64) float64 {
	if silence < silentFrom || silence.Seconds() < silentSteps*step {
		return 0
	}
	return min(silence, silentMost).Seconds()
}

// silenceCame learns from the silence at the end of an answer that has broken off. The next token
// would have come later still. A kind of which little is known would take it for a usual step.
func (l *Leg) silenceCame(a *attempt, now time.Time) {
	f := &a.forecast
	if f.looked.IsZero() || f.uneven || !a.cost.Listens() || !a.member.engine.Kind().Rates().KnowsSteps() {
		return
	}
	last := f.looked
	if l.Reading.Last.After(last) {
		last = l.Reading.Last
	}
	if standstill(now.Sub(last), f.step) > 0 {
		l.learnGaps(a, max(l.Reading.Events, f.events)+1, now)
	}
}

// lengthCame learns from the length of a complete answer. The answer of a prefill is a part, and so
// is the rest of an answer that another node began.
func (l *Leg) lengthCame(a *attempt, tokens int64) {
	if !a.forecast.made() || !l.Request.Generates() || l.Work != Answer || l.Continues {
		return
	}
	c := l.class()
	l.d.forecasts.lengths.Learn(&c, tokens)
	if tokens > 0 {
		l.model.metrics.LengthError.Observe(a.forecast.output - float64(tokens))
	}
}
