package leg

import (
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// forecasts are what a dispatcher has learned about the times of engines. The kinds are bounded by
// the fleet's nodes and models. The dispatcher's rebuilding guards the map.
type forecasts struct {
	kinds   map[string]*predict.Kind
	lengths predict.Lengths
}

// demand is how busy the engines of a model are with prefill.
type demand struct{ busy atomic.Uint64 }

// busiest bounds the share of engines that compute a prompt.
const busiest = 0.9

// note takes in the share of engines that compute a prompt at a pick, and returns the number of
// requests that a prompt's prefill delays. An engine that is busy for a share b of the time delays
// b/(1-b) later requests on average.
func (d *demand) note(share float64, keep bool) (pressure float64) {
	old := math.Float64frombits(d.busy.Load())
	b := old + (share-old)/64
	if keep {
		d.busy.Store(math.Float64bits(b)) // a pick of the same moment may be lost
	}
	b = min(b, busiest)
	return b / (1 - b)
}

// engine returns what is known of the times of a node's engine with a model, or an adapter of the
// model. The caller holds d.rebuilding.
func (d *Dispatcher) engine(n *nodeState, view *fleet.ModelView) *predict.Engine {
	i := n.Info()
	name := view.Name
	if view.Adapter {
		name = ""
	}
	key := fmt.Sprint(name, "|", i.Engine, "|", i.DType, "|", i.TP, "|", i.Device, "|", i.VRAMBytes>>30)
	if e := n.engines[key]; e != nil {
		return e
	}
	k := d.forecasts.kinds[key]
	if k == nil {
		k = predict.NewKind()
		d.forecasts.kinds[key] = k
	}
	if n.engines == nil {
		n.engines = map[string]*predict.Engine{}
	}
	e := predict.NewEngine(k)
	n.engines[key] = e
	return e
}

// time fills in what mode predicted needs to know about the candidates.
func (l *Leg) time(now time.Time) {
	p := &l.picks
	p.times = p.times[:0]
	busy := 0
	for i, at := range p.able {
		m, c := l.pool.members[at], &p.cands[i]
		book := &m.rank.Book
		t := policy.Timing{Speed: m.engine.Speed(now), Wait: book.Backlog(now).Seconds(), Blocks: book.Blocks()}
		load := m.rank.Load()
		if waiting := load.Waiting; waiting > 0 {
			t.Wait += float64(waiting) * t.Prefills * t.Prefill(predict.Prompt(book.Mean(), 0))
		}
		t.Blocks += float64(load.OthersBlocks)
		t.Decoding = float64(max(c.InFlight-book.Pressing(), 0) + max(c.Others-load.Waiting, 0))
		t.Pressing = float64(book.Pressing())
		t.Slots = float64(c.EngineSlots)
		if total, known := load.TotalBlocks.Get(); known {
			t.Memory = total * float64(m.node.Info().BlockTokens) / prefix.BlockTokens
		}
		if t.Wait > 0 {
			busy++
		}
		p.times = append(p.times, t)
	}
	share := 0.0
	if len(p.able) > 0 {
		share = float64(busy) / float64(len(p.able))
	}
	defer l.zzDump(now)
	usual := predict.Class{Model: xxhash.Sum64String(l.model.name)}
	p.forecast = policy.Forecast{Output: l.output(), Usual: l.d.forecasts.lengths.Expected(&usual), Pressure: l.model.demand.note(share, !p.explains)}
}

// class returns the classes of the request's answer.
func (l *Leg) class() (c predict.Class) {
	r := l.Request
	c.Model, c.Session, c.Bound = xxhash.Sum64String(l.model.name), l.picks.session, r.Scan.MaxTokens
	if keys := l.prompt.Keys(); len(keys) > 0 {
		c.Caller = keys[0]
	}
	return c
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

// forecast is what was expected of an attempt, and how far its answer has been learned from.
type forecast struct {
	first  predict.First
	output float64

	events   int64         // of the answer at the last look
	looked   time.Time     // time of the last look; zero: no token has come
	computed time.Duration // prefill of the engine until then
}

// foresees records what is expected of the attempt, at a place of the pool.
func (l *Leg) foresees(a *attempt, at int, now time.Time) {
	if l.picks.policy.Mode != policy.Predicted {
		return
	}
	m := l.pool.members[at]
	book := &m.rank.Book
	s := m.engine.Speed(now)
	load := m.rank.Load()
	f := &a.forecast.first
	f.Wait = book.Backlog(now).Seconds() + float64(load.Waiting)*s.Prefills*s.Prefill(predict.Prompt(book.Mean(), 0))
	f.Work = predict.Prompt(l.prompt.Tokens(), int64(max(a.matched, a.believed))*prefix.BlockTokens)
	others := float64(max(m.rank.InFlight()-1-book.Pressing(), 0) + max(load.Others-load.Waiting, 0))
	f.Step = s.Decode(others, book.Blocks()+float64(load.OthersBlocks))
	s.Forecast(f)
	a.forecast.output = l.picks.forecast.Output
}

// prefillTime returns the expected time of the attempt's prefill alone.
func (l *Leg) prefillTime(a *attempt, now time.Time) time.Duration {
	s := a.member.engine.Speed(now)
	return max(time.Duration(s.Prefills*s.Prefill(a.forecast.first.Work)*float64(time.Second)), 1)
}

// firstCame learns from the first token of the attempt's answer.
func (l *Leg) firstCame(a *attempt, now time.Time) {
	f := &a.forecast
	if f.first.Expected == 0 || !l.Request.Scan.Stream || l.Request.API == scan.Responses {
		return // engines announce such an answer before they compute it
	}
	a.member.engine.LearnFirst(&f.first, now.Sub(a.sent).Seconds(), now)
	f.looked, f.events, f.computed = now, 1, a.member.rank.Book.Computed(now)
}

// tokensCame learns from the spacing of the tokens since the last look.
func (l *Leg) tokensCame(a *attempt, events int64, now time.Time) {
	f := &a.forecast
	if f.looked.IsZero() || events <= f.events {
		return
	}
	book, load := &a.member.rank.Book, a.member.rank.Load()
	computed := book.Computed(now)
	g := predict.Gaps{
		Tokens: float64(events - f.events), Seconds: now.Sub(f.looked).Seconds(),
		Prefill:  (computed - f.computed).Seconds(),
		Requests: float64(max(a.member.rank.InFlight()-book.Pressing(), 1) + max(load.Others-load.Waiting, 0)),
		Blocks:   book.Blocks() + float64(load.OthersBlocks),
	}
	a.member.engine.LearnGaps(&g, now)
	f.looked, f.events, f.computed = now, events, computed
}

// lengthCame learns from the length of a complete answer.
func (l *Leg) lengthCame(a *attempt, tokens int64) {
	if a.forecast.first.Expected == 0 || !l.Request.Generates() {
		return
	}
	c := l.class()
	l.d.forecasts.lengths.Learn(&c, tokens)
}

// every is the number of events of an answer between two looks at their spacing.
const every = 32
