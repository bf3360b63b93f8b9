package leg

import (
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// forecasts are what a dispatcher has learned about the times of engines and the lengths of
// answers, for mode predicted. The dispatcher's rebuilding guards kinds. The kinds are bounded by
// the models and the facts of nodes that the router has seen.
type forecasts struct {
	kinds   map[kindKey]*predict.Kind
	lengths predict.Lengths
}

// kindKey names the engines that are expected to be equally fast with a model.
type kindKey struct {
	model string
	like  likeness
}

// likeness is what tells engines apart.
type likeness struct {
	engine, dtype, device string
	tp, vramGiB           int
}

func likenessOf(i *fleet.Info) likeness {
	return likeness{i.Engine, i.DType, i.Device, i.TP, int(i.VRAMBytes >> 30)}
}

// engine returns what is known about the times of a node's engine with a model. A LoRA adapter has
// the times of its base. The caller holds d.rebuilding.
func (d *Dispatcher) engine(n *nodeState, like likeness, view *fleet.ModelView) *predict.Engine {
	key := kindKey{view.Name, like}
	if view.Base != nil {
		key.model = view.Base.Name
	}
	e := n.engines[key]
	if e == nil {
		k := d.forecasts.kinds[key]
		if k == nil {
			k = predict.NewKind()
			d.forecasts.kinds[key] = k
		}
		if e = predict.NewEngine(k); n.engines == nil {
			n.engines = map[kindKey]*predict.Engine{}
		}
		n.engines[key] = e
	}
	return e
}

// foresees says whether the policy of the pick needs expected times.
func (l *Leg) foresees() bool { return l.picks.policy.Mode == policy.Predicted }

// speed returns the speed of n at now, as far as the policy lets it be learned.
func (l *Leg) speed(n *member, now time.Time) predict.Speed {
	set := &l.picks.policy.Predicted
	if !set.Learn {
		return predict.Untaught()
	}
	return n.engine.Speed(now, set.Explore)
}

// timing returns what mode predicted knows about n at now. own is the number of requests of this
// router at n.
func (l *Leg) timing(n *member, own int32, now time.Time) policy.Timing {
	book, load := &n.rank.Book, n.rank.Load()
	pressing := book.Pressing()
	t := policy.Timing{
		Speed: l.speed(n, now), Wait: book.Backlog(now).Seconds(), Pressing: float64(pressing),
		Decoding: float64(max(own-pressing, 0)), Blocks: book.Blocks(),
	}
	if load.Others > 0 {
		t.Pressing += float64(load.Waiting)
		t.Wait += float64(load.Waiting) * t.Prefills * (t.Each + t.Prefill(predict.Prompt(book.Mean(), 0)))
		t.Decoding += float64(load.Others - load.Waiting)
		t.Blocks += float64(load.OthersBlocks)
	}
	return t
}

// foreseeAll fills in what mode predicted needs to know about the request and the candidates.
func (l *Leg) foreseeAll(now time.Time) {
	p := &l.picks
	p.times = slices.Grow(p.times[:0], len(p.able))[:len(p.able)]
	for i, at := range p.able {
		p.times[i] = l.timing(l.pool.members[at], p.cands[i].InFlight, now)
		if p.cands[i].Loads {
			p.times[i].Load = l.model.adapterLoad.Seconds()
		}
	}
	p.output = l.output()
	if !p.whole && !p.explains {
		l.model.demand.note(p.times)
	}
	p.pressure = l.model.demand.pressure()
}

// demand is the share of the time in which the engines of a model compute prompts.
type demand struct{ busy atomic.Uint64 }

const (
	// demandGain is the weight of a pick in the share.
	demandGain = 1.0 / 64
	// busiest bounds the share.
	busiest = 0.9
)

// note takes in the candidates of a pick.
func (d *demand) note(times []policy.Timing) {
	busy := 0
	for i := range times {
		if times[i].Pressing > 0 {
			busy++
		}
	}
	b := math.Float64frombits(d.busy.Load())
	b += (float64(busy)/float64(max(len(times), 1)) - b) * demandGain
	d.busy.Store(math.Float64bits(b)) // two picks at once may count as one
}

// pressure returns how many later requests a prompt's prefill delays on average. An engine that
// computes prompts in a share b of the time delays b/(1-b).
func (d *demand) pressure() float64 {
	b := min(math.Float64frombits(d.busy.Load()), busiest)
	return b / (1 - b)
}

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

// class returns the classes of the request's answer.
func (l *Leg) class() (c predict.Class) {
	c = predict.Class{Model: l.model.hash, Bound: l.Request.Scan.MaxTokens}
	if len(l.Request.Session) > 0 {
		c.Session = xxhash.Sum64(l.Request.Session)
	}
	if keys := l.prompt.Keys(); len(keys) > 0 {
		c.Caller = keys[0]
	}
	return c
}

// forecast is what was expected of an attempt, and how far its answer has been learned from.
type forecast struct {
	first    predict.First
	step     float64       // expected seconds between two tokens
	output   float64       // expected tokens of the answer
	took     float64       // seconds until the first token; 0: it has not come, or cannot be told
	prefill  time.Duration // of this prompt alone
	held     bool          // the engine has no slot, or loads the adapter first; first does not tell that wait
	events   int64         // of the answer at the last look
	together int64         // events since then that were read together with the one before
	looked   time.Time     // time of the last look; zero: no token has come
	computed time.Duration // prefill of the engine until then
}

// foresee notes what is expected of an attempt before its cost is in the node's book.
func (l *Leg) foresee(a *attempt, now time.Time) {
	if !l.foresees() {
		return
	}
	t := l.timing(a.member, a.member.rank.InFlight()-1, now)
	f := &a.forecast
	f.first = predict.First{
		Wait: t.Wait, Ahead: t.Pressing, Step: t.Decode(t.Decoding, t.Blocks),
		Work: predict.Prompt(l.prompt.Tokens(), int64(max(a.matched, a.believed))*prefix.BlockTokens),
	}
	t.Forecast(&f.first)
	f.output = l.picks.output
	own := t.Sequence + t.Block*(float64(l.prompt.Blocks)+f.output/(2*prefix.BlockTokens))
	f.step = t.Decodes * (f.first.Step + own)
	slots := a.member.node.Info().EngineSlots
	f.held = slots > 0 && a.member.node.InFlight()+a.member.node.Load().Others > slots || l.lacksAdapter(a.member)
	f.prefill = max(time.Duration(t.Prefills*(t.Each+t.Prefill(f.first.Work))*float64(time.Second)), 1)
}

// learns says whether the times of an attempt's answer are learned from.
func (l *Leg) learns(a *attempt) bool {
	return a.forecast.first.Expected > 0 && l.picks.policy.Predicted.Learn
}

// firstCame learns from the first token of an attempt's answer.
func (l *Leg) firstCame(a *attempt, now time.Time) {
	f := &a.forecast
	if !l.learns(a) || !l.Request.Scan.Stream || l.Request.API == scan.Responses {
		return // engines announce a response before they compute it
	}
	f.took = now.Sub(a.sent).Seconds()
	l.model.metrics.FirstCame(f.first.Expected, f.took)
	if !f.held {
		a.member.engine.LearnFirst(&f.first, f.took, now)
	}
	f.looked, f.events, f.computed = now, 1, a.member.rank.Book.Computed(now)
}

// gapsEvery is the number of events of an answer between two looks at their spacing.
const gapsEvery = 32

// tokensCame learns from the spacing of the events since the last look. While a client reads
// slowly, the events wait for it. Most are then read together, and tell nothing about the engine.
func (l *Leg) tokensCame(a *attempt, events int64, now time.Time) {
	f := &a.forecast
	if f.looked.IsZero() || events <= f.events {
		return
	}
	book := &a.member.rank.Book
	computed, load := book.Computed(now), a.member.rank.Load()
	if f.together <= (events-f.events)/2 {
		a.member.engine.LearnGaps(&predict.Gaps{
			Tokens: float64(events - f.events), Seconds: now.Sub(f.looked).Seconds(),
			Prefill:  max(computed-f.computed, 0).Seconds(),
			Requests: float64(max(a.member.rank.InFlight()-book.Pressing(), 1) + load.Others - load.Waiting),
			Blocks:   book.Blocks() + float64(load.OthersBlocks),
		}, now)
	}
	f.looked, f.events, f.together, f.computed = now, events, 0, computed
}

// lengthCame learns from the length of a complete answer.
func (l *Leg) lengthCame(a *attempt, tokens int64) {
	if a.forecast.first.Expected > 0 && l.Request.Generates() {
		c := l.class()
		l.d.forecasts.lengths.Learn(&c, tokens)
		if tokens > 0 && l.Work == Answer {
			l.model.metrics.LengthError.Observe(a.forecast.output - float64(tokens))
		}
	}
}
