package predict

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// machine is an engine with known rates. Its times have noise of 5 %.
type machine struct {
	Rates
	slower   float64 // factor of all times
	outliers float64 // share of the times that are ten times as long
	dice     *rand.Rand
}

func newMachine(r Rates) *machine {
	return &machine{Rates: r, slower: 1, dice: rand.New(rand.NewPCG(1, 2))}
}

func (m *machine) noisy(seconds float64) float64 {
	if m.dice.Float64() < m.outliers {
		seconds *= 10
	}
	return seconds * m.slower * (1 + 0.05*m.dice.NormFloat64())
}

// batch returns a random decode batch.
func (m *machine) batch() (requests, blocks float64) {
	requests = float64(m.dice.IntN(40))
	return requests, requests * float64(10+m.dice.IntN(300))
}

// work returns the work of a random prompt.
func (m *machine) work() Work {
	return Prompt(16+m.dice.Int64N(12000), m.dice.Int64N(2)*m.dice.Int64N(12000))
}

// answer lets e forecast a first token of work and learn from it. The time of the first token is
// that of the machine.
func (m *machine) answer(e *Engine, w Work, now time.Time) (f First, took float64) {
	requests, blocks := m.batch()
	s := e.Speed()
	f = First{Work: w, Step: s.Decode(requests, blocks)}
	s.Forecast(&f)
	took = m.noisy(m.Base + m.Prefill(w) + m.Steps*m.Decode(requests, blocks))
	e.LearnFirst(&f, took, now)
	return f, took
}

// decode lets e learn from 32 tokens.
func (m *machine) decode(e *Engine, now time.Time) {
	requests, blocks := m.batch()
	e.LearnGaps(&Gaps{Tokens: 32, Seconds: m.noisy(32 * m.Decode(requests, blocks)), Requests: requests,
		Blocks: blocks}, now)
}

// run lets e learn from n random answers, 100 ms apart, and returns the time of the last one.
func (m *machine) run(e *Engine, n int, now time.Time) time.Time {
	for range n {
		now = now.Add(100 * time.Millisecond)
		m.decode(e, now)
		m.answer(e, m.work(), now)
	}
	return now
}

var noon = time.Unix(1_700_000_000, 0)

// within checks that got is near want, relative to want.
func within(t *testing.T, name string, got, want, part float64) {
	t.Helper()
	if !(math.Abs(got-want) <= part*want) {
		t.Errorf("%s is %.4g, want %.4g within %g %%", name, got, want, 100*part)
	}
}

var (
	linear    = Rates{Base: 0.03, Token: 1.0 / 15000, Steps: 1, Step: 0.02, Sequence: 0.0004, Block: 3e-6}
	quadratic = Rates{Base: 0.01, Token: 1.0 / 20000, Pair: 8e-9, Steps: 1.5, Step: 0.008, Sequence: 0.0001,
		Block: 1e-5}
)

// probes are prompts, and batches beside them, whose times tests compare.
var probes = []struct {
	work             Work
	requests, blocks float64
}{{Prompt(100, 0), 0, 0}, {Prompt(2000, 0), 10, 1000}, {Prompt(2000, 6000), 30, 6000}, {Prompt(10000, 0), 2, 100}}

// expects returns the relative errors of the times that e expects of m at now, for each probe.
func (m *machine) expects(e *Engine, now time.Time) (worst float64) {
	s := e.Speed()
	for _, p := range probes {
		f := First{Work: p.work, Step: s.Decode(p.requests, p.blocks)}
		s.Forecast(&f)
		first := m.slower * (m.Base + m.Prefill(p.work) + m.Steps*m.Decode(p.requests, p.blocks))
		step := m.slower * m.Decode(p.requests, p.blocks)
		worst = max(worst, math.Abs(f.Expected/first-1), math.Abs(s.DecodeFactor*f.Step/step-1))
	}
	return worst
}

// taught returns the numbers of first tokens and of stretches that have taught an engine's times.
func taught(e *Engine) (firsts, gaps int) {
	prefills, decodes := e.Known()
	return prefills.Answers, decodes.Answers
}

// TestKnownRates checks that a kind learns the rates of engines, although one in twenty answers
// takes ten times as long.
func TestKnownRates(t *testing.T) {
	for name, r := range map[string]Rates{"linear": linear, "quadratic": quadratic} {
		for _, outliers := range []float64{0, 0.05} {
			m, e := newMachine(r), NewEngine(NewKind(new(Traffic)))
			m.outliers = outliers
			now := m.run(e, 3000, noon)
			got, part := e.Kind().Rates(), 0.06+outliers
			within(t, name+": Base", got.Base, r.Base, part)
			within(t, name+": Token", got.Token, r.Token, part)
			within(t, name+": Pair and the start", got.Pair+start.Pair, r.Pair+start.Pair, part+0.04)
			within(t, name+": Steps", got.Steps, r.Steps, part)
			within(t, name+": Step", got.Step, r.Step, part)
			within(t, name+": Sequence", got.Sequence, r.Sequence, part)
			within(t, name+": Block", got.Block, r.Block, part)
			if off := m.expects(e, now); off > part {
				t.Errorf("%s: a time is %.1f %% off with %g %% outliers", name, 100*off, 100*outliers)
			}
			if got.Firsts < 2900 || got.Gaps < 2900 {
				t.Errorf("%s: rates of %d first tokens and %d gaps", name, got.Firsts, got.Gaps)
			}
			if firsts, gaps := taught(e); firsts < 2960 || firsts > 3000 || gaps < 2960 || gaps > 3000 {
				t.Errorf("%s: %d first tokens, %d gaps", name, firsts, gaps)
			}
		}
	}
}

// TestFarStart checks after how many answers all times are within a quarter, for engines that are
// much slower and much faster than the start values.
func TestFarStart(t *testing.T) {
	times := func(f float64) Rates {
		return Rates{Base: f * start.Base, Token: f * start.Token, Steps: 1, Step: f * start.Step,
			Sequence: f * start.Sequence,
			Block:    f * start.Block}
	}
	for _, c := range []struct {
		factor  float64
		answers int
	}{{80, 128}, {5, 32}, {0.2, 200}, {0.1, 400}} {
		m, e := newMachine(times(c.factor)), NewEngine(NewKind(new(Traffic)))
		now := m.run(e, c.answers, noon)
		for range 10 { // and they stay so
			if off := m.expects(e, now); off > 0.25 {
				t.Errorf("%g times as slow: %.0f %% off after %d answers", c.factor, 100*off, c.answers)
			}
			now = m.run(e, 20, now)
		}
	}
}

// fleet returns engines of one kind and their machines, which have these factors, after n answers
// of each.
func fleet(r Rates, n int, slower ...float64) (all []*Engine, machines []*machine, now time.Time) {
	k := NewKind(new(Traffic))
	for _, f := range slower {
		m := newMachine(r)
		m.slower = f
		all, machines = append(all, NewEngine(k)), append(machines, m)
	}
	now = noon
	for range n {
		for i, m := range machines {
			m.run(all[i], 1, now)
		}
		now = now.Add(200 * time.Millisecond)
	}
	return all, machines, now
}

// TestFactors checks that an engine unlike its kind gets a factor, soon, and that the kind's rates
// stay.
func TestFactors(t *testing.T) {
	for _, slower := range []float64{0.5, 2} {
		all, machines, now := fleet(linear, 800, 1, 1, 1)
		was := *all[0].Kind().Rates()
		e, m := NewEngine(all[0].Kind()), newMachine(linear)
		s := e.Speed()
		if s.PrefillFactor != was.Typical[prefill] || s.DecodeFactor != was.Typical[decode] || *s.Rates != was {
			t.Errorf("a new engine is unlike its kind: %+v", s)
		}
		m.slower = slower
		for i := range 400 {
			for k := range all {
				machines[k].run(all[k], 1, now)
			}
			if now = m.run(e, 1, now); i == 20 {
				s := e.Speed()
				within(t, "the factor of prefill after 20 answers", s.PrefillFactor, slower, 0.2)
				within(t, "the factor of decode after 20 answers", s.DecodeFactor, slower, 0.2)
			}
		}
		got := e.Kind().Rates()
		within(t, "Token", got.Token, was.Token, 0.25) // of the mean of the four
		within(t, "Step", got.Step, was.Step, 0.25)
		for k := range all {
			if off := machines[k].expects(all[k], now); off > 0.1 {
				t.Errorf("beside an engine %g times as slow a time of another is %.0f %% off", slower, 100*off)
			}
		}
		if off := m.expects(e, now); off > 0.1 {
			t.Errorf("of an engine %g times as slow a time is %.0f %% off", slower, 100*off)
		}
	}
}

// TestFirstAnswers checks that the engines that answered first are not taken for unlike their kind
// because the start values were far off.
func TestFirstAnswers(t *testing.T) {
	for _, factor := range []float64{0.25, 5} {
		k := NewKind(new(Traffic))
		first, other := NewEngine(k), NewEngine(k)
		m := newMachine(Rates{Base: factor * start.Base, Token: factor * start.Token, Steps: 1,
			Step:     factor * start.Step,
			Sequence: factor * start.Sequence, Block: factor * start.Block})
		m.run(other, 300, m.run(first, 3, noon))
		a, b := first.Speed(), other.Speed()
		within(t, "prefill of the engine that answered first", a.PrefillFactor, b.PrefillFactor, 0.2)
		within(t, "decode of the engine that answered first", a.DecodeFactor, b.DecodeFactor, 0.2)
	}
}

// TestChangedSpeed checks that an engine that has become slower is seen within a few answers, and
// so is its recovery.
func TestChangedSpeed(t *testing.T) {
	all, machines, now := fleet(linear, 500, 1, 1)
	e, m := all[0], machines[0]
	m.slower = 5
	now = m.run(e, 8, now)
	s := e.Speed()
	if s.PrefillFactor < 3.5 || s.PrefillFactor > 6 || s.DecodeFactor < 3.5 || s.DecodeFactor > 6 {
		t.Errorf("after 8 answers: %v, %v", s.PrefillFactor, s.DecodeFactor)
	}
	if other := all[1].Speed(); other.PrefillFactor > 1.1 || other.DecodeFactor > 1.1 {
		t.Errorf("the other engine: %v, %v", other.PrefillFactor, other.DecodeFactor)
	}
	for i := range 60 {
		now = machines[1].run(all[1], 1, m.run(e, 1, now))
		if s := e.Speed(); s.PrefillFactor < 4 || s.DecodeFactor < 4 {
			t.Fatalf("after %d answers: %v, %v", 9+i, s.PrefillFactor, s.DecodeFactor)
		}
	}
	m.slower = 1
	m.run(e, 12, now)
	if s := e.Speed(); s.PrefillFactor > 1.5 || s.DecodeFactor > 1.5 {
		t.Errorf("12 answers after the engine has recovered: %v, %v", s.PrefillFactor, s.DecodeFactor)
	}
}

// TestAnswersInFlight checks a slower engine's answers that were all forecast before the first of
// them came. They say the same about the engine, and do not add up.
func TestAnswersInFlight(t *testing.T) {
	all, _, now := fleet(linear, 500, 1)
	e := all[0]
	s := e.Speed()
	forecasts := make([]First, 32)
	for i := range forecasts {
		forecasts[i] = First{Work: Prompt(2000, 0), Step: s.Decode(4, 100)}
		s.Forecast(&forecasts[i])
	}
	for i := range forecasts {
		e.LearnFirst(&forecasts[i], 5*forecasts[i].Expected, now)
	}
	within(t, "the factor after 32 answers at once", e.Speed().PrefillFactor, 5*s.PrefillFactor, 0.1)
}

// TestClips checks how late and early observations count: as they are while there are few, then
// late ones less than early ones.
func TestClips(t *testing.T) {
	for _, c := range []struct {
		y    float64
		n    int
		want float64
	}{
		{1000, unclippedFirst - 1, 1000}, {1, unclippedFirst - 1, 1}, {-1, unclippedFirst - 1, 0},
		{1000, unclippedFirst, 15}, {14, unclippedFirst, 14}, {10, unclippedFirst, 10},
		{3, unclippedFirst, 3}, {1, unclippedFirst, 2.5}, {-1, unclippedFirst, 2.5},
	} {
		got, isLate := like(0, c.y, 10, c.n, unclippedAlike)
		if got != c.want || isLate != (c.n == unclippedFirst && c.y > 15) {
			t.Errorf("%v instead of 10 after %d observations counts as %v, want %v", c.y, c.n, got, c.want)
		}
	}
	if got, _ := like(math.Log(2), 20, 10, unclippedFirst, unclippedAlike); math.Abs(got-10) > 1e-9 {
		t.Errorf("20 of an engine that is twice as slow as a typical one counts as %v", got)
	}
}

// TestLateAnswersCountLess checks that late answers of many engines move their kind's rates less
// than early ones do, however late they are.
func TestLateAnswersCountLess(t *testing.T) {
	moved := func(times float64) (token, step float64) {
		all, _, now := fleet(linear, 1000, 1)
		was := *all[0].Kind().Rates()
		for i := range 640 {
			m := newMachine(linear)
			m.dice = rand.New(rand.NewPCG(uint64(i), 3))
			if i%8 == 0 {
				m.slower = times
			}
			e := NewEngine(all[0].Kind()) // without a factor
			m.run(e, 1, now)
		}
		is := all[0].Kind().Rates()
		return math.Log(is.Token / was.Token), math.Log(is.Step / was.Step)
	}
	earlyToken, earlyStep := moved(1.0 / 4)
	lateToken, lateStep := moved(4)
	hugeToken, hugeStep := moved(1000)
	if !(earlyToken < 0 && lateToken > -0.02 && lateToken < -earlyToken && earlyStep < 0 && lateStep > 0 &&
		lateStep < -earlyStep) {
		t.Errorf("early answers move the times by %v and %v, late ones by %v and %v", earlyToken, earlyStep,
			lateToken, lateStep)
	}
	if hugeToken != lateToken || hugeStep != lateStep {
		t.Errorf("answers a thousand times late move the times by %v and %v, answers four times late by %v and %v",
			hugeToken, hugeStep, lateToken, lateStep)
	}
}

// TestQueuedPrompts checks that prompts that waited teach the time of each prompt before them, and
// next to nothing else. Other prompts found the engine idle.
func TestQueuedPrompts(t *testing.T) {
	const each = 0.02
	all, machines, now := fleet(linear, 1000, 1)
	e, m, was := all[0], machines[0], *all[0].Kind().Rates()
	if was.Each != 0 {
		t.Errorf("each prompt takes %v s before one has waited", was.Each)
	}
	for range 2000 {
		now = m.run(e, 1, now)
		s, w, requests := e.Speed(), m.work(), float64(m.dice.IntN(10))
		ahead, before := float64(1+m.dice.IntN(8)), Prompt(100+m.dice.Int64N(800), 0)
		f := First{Work: w, Step: s.Decode(requests, 0), Ahead: ahead, Wait: ahead * s.PrefillFactor * (s.Each +
			s.Prefill(before))}
		s.Forecast(&f)
		e.LearnFirst(&f, m.noisy(m.Base+m.Prefill(w)+m.Steps*m.Decode(requests, 0)+ahead*(each+m.Prefill(before))), now)
	}
	is := e.Speed()
	within(t, "the time of each prompt", is.PrefillFactor*is.Each, each, 0.2)
	within(t, "Token", is.Token, was.Token, 0.05)
	within(t, "Base", is.Base, was.Base, 0.1)
	within(t, "the factor", is.PrefillFactor, 1, 0.1)
}

// TestWorkOfPrompts checks the tokens and pairs of prompts, also of impossible ones.
func TestWorkOfPrompts(t *testing.T) {
	for _, c := range []struct {
		tokens, cached int64
		want           Work
	}{
		{0, 0, Work{}}, {100, 0, Work{100, 5000}}, {100, 60, Work{40, 40 * (60 + 20)}}, {100, 100, Work{}},
		{100, 200, Work{}}, {100, -50, Work{150, 150 * 75}}, {-5, 0, Work{}},
	} {
		if got := Prompt(c.tokens, c.cached); got != c.want {
			t.Errorf("%d tokens, %d cached: %+v, want %+v", c.tokens, c.cached, got, c.want)
		}
	}
}

// TestForecast checks the formula of the package's comment.
func TestForecast(t *testing.T) {
	s := Speed{Rates: &Rates{Base: 1, Token: 0.5, Pair: 0.25, Steps: 3, Step: 1, Sequence: 2, Block: 4},
		PrefillFactor: 2, DecodeFactor: 7}
	f := First{Wait: 100, Ahead: 5, Work: Work{Tokens: 8, Pairs: 16}, Step: s.Decode(2, 3)}
	if s.Forecast(&f); f.Step != 1+2*2+4*3 || f.Expected != 100+2*(1+0.5*8+0.25*16+3*f.Step) {
		t.Errorf("%+v", f)
	}
	if s := Untaught(); *s.Rates != start || s.PrefillFactor != 1 || s.DecodeFactor != 1 {
		t.Errorf("%+v", s)
	}
}

// TestLearningDoesNotAllocate checks everything that runs for a request. New rates take memory, but
// are published rarely.
func TestLearningDoesNotAllocate(t *testing.T) {
	all, _, now := fleet(linear, 100, 1)
	e, sum := all[0], 0.0
	f, g := First{Work: Prompt(500, 0)}, Gaps{Tokens: 32, Seconds: 1, Requests: 3, Blocks: 50}
	var l Lengths
	c := Class{Model: 1, Caller: 2, Session: 3, Bound: 100}
	l.Learn(&c, 10)
	for name, run := range map[string]func(){
		"Speed":    func() { s := e.Speed(); sum += s.PrefillFactor },
		"Forecast": func() { s := e.Speed(); s.Forecast(&f) },
		"Expected": func() { sum += l.Expected(&c) },
		"Learn":    func() { l.Learn(&c, 10) },
	} {
		if n := testing.AllocsPerRun(100, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for name, run := range map[string]func(){
		"LearnFirst": func() { e.LearnFirst(&f, 0.1, now) }, "LearnGaps": func() { e.LearnGaps(&g, now) },
	} {
		if n := testing.AllocsPerRun(2*publishEvery, run); n != 0 { // less than one in two
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// TestConcurrentLearning lets many goroutines learn and ask at once. The times of all are right
// afterwards.
func TestConcurrentLearning(t *testing.T) {
	k := NewKind(new(Traffic))
	engines := []*Engine{NewEngine(k), NewEngine(k)}
	var l Lengths
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			m := newMachine(linear)
			m.dice = rand.New(rand.NewPCG(uint64(i), 1))
			m.run(engines[i%2], 500, noon)
			for n := range int64(500) {
				c := Class{Model: 1, Caller: uint64(i), Session: uint64(n)}
				l.Learn(&c, 100)
				l.Expected(&c)
				taught(engines[i%2])
			}
		})
	}
	wg.Wait()
	for _, e := range engines {
		if off := newMachine(linear).expects(e, noon); off > 0.1 {
			t.Errorf("a time is %.0f %% off", 100*off)
		}
		if firsts, gaps := taught(e); firsts < 1950 || firsts > 2000 || gaps < 1950 || gaps > 2000 {
			t.Errorf("%d first tokens, %d gaps", firsts, gaps)
		}
	}
	within(t, "the length", l.Expected(&Class{Model: 1}), 100, 0.01)
}

// TestChangedKind checks that a kind whose engines have all changed follows them. The engines'
// factors are then as before.
func TestChangedKind(t *testing.T) {
	all, machines, now := fleet(linear, 1000, 1, 1)
	for range 1500 {
		for i, m := range machines {
			m.slower = 3
			m.run(all[i], 1, now)
		}
		now = now.Add(100 * time.Millisecond)
	}
	for i, e := range all {
		s := e.Speed()
		within(t, "Token", s.Token, 3*linear.Token, 0.1)
		within(t, "Step", s.Step, 3*linear.Step, 0.1)
		within(t, "the factor of prefill", s.PrefillFactor, 1, 0.1)
		within(t, "the factor of decode", s.DecodeFactor, 1, 0.1)
		if off := machines[i].expects(e, now); off > 0.1 {
			t.Errorf("a time is %.0f %% off", 100*off)
		}
	}
}

// TestGapsWithPrefill checks that other requests' prefill does not count as decode, and that gaps
// that are mostly prefill say nothing.
func TestGapsWithPrefill(t *testing.T) {
	all, m, now := fleet(linear, 500, 1)
	e, was := all[0], *all[0].Kind().Rates()
	for i := range 500 {
		requests, blocks := m[0].batch()
		g := Gaps{Tokens: 32, Seconds: 32 * linear.Decode(requests, blocks), Requests: requests, Blocks: blocks}
		if g.Prefill = 0.9 * g.Seconds; i%2 > 0 {
			g.Prefill = 1.8 * g.Seconds
		}
		g.Seconds += 0.9 * g.Seconds
		if i%2 == 0 {
			e.LearnGaps(&g, now)
			continue
		}
		before := *e.Kind().Rates()
		if e.LearnGaps(&g, now); *e.Kind().Rates() != before {
			t.Fatal("gaps of prefill count")
		}
	}
	s := e.Speed()
	within(t, "Step", s.DecodeFactor*s.Step, was.Step, 0.1)
	if _, gaps := taught(e); gaps < 500+250-24 || gaps > 500+250 {
		t.Errorf("%d gaps count", gaps)
	}
}
