package policy

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/predict"
)

// byHand are rates and settings with which costs are worked by hand. A prompt of 1600 tokens takes
// 1.6 s. The first token of an idle node comes after 1 + 1.6 + 2*0.01 = 2.62 s. A step of an idle
// node takes 0.01 s, and own more with a request of 100 blocks and 100 output tokens.
var (
	byHand = PredictedSettings{First: 2, Wait: 1, Others: 5, Burst: 7, Learn: true, Explore: true}
	rates  = predict.Rates{Base: 1, Token: 0.001, Steps: 2, Step: 0.01, Sequence: 0.001, Block: 0.0001}
)

const own = 0.001 + 0.0001*(100+100./32)

// timed returns what is known about a node with rates that has nothing to do.
func timed() Timing {
	return Timing{Speed: predict.Speed{Rates: &rates, PrefillFactor: 1, DecodeFactor: 1}}
}

// expectedCase is one node with its cost for a prompt of 1600 tokens and an answer of 100, worked
// by hand.
type expectedCase struct {
	name string
	node Candidate
	at   func(t *Timing)                // nil: an idle node
	edit func(p *Policy, s *Situation)  // nil: byHand
	want float64                        // 0: any
	term func(t *ExpectedTerms) float64 // nil: none is compared
	is   float64                        // the term
}

func (c *expectedCase) check(t *testing.T) {
	t.Helper()
	p, e := Default(), Explanation{}
	p.Mode, p.Predicted = Predicted, byHand
	s := situationOf(2) // the other one is idle
	s.Candidates[0] = c.node
	if c.at != nil {
		c.at(&s.Times[0])
	}
	if c.edit != nil {
		c.edit(p, s)
	}
	p.Explain(s, &e)
	got := &e.Terms[0]
	if c.want != 0 && math.Abs(got.Total-c.want) > 1e-9 || got.Expected.Total != got.Total {
		t.Errorf("%s: cost %v, want %v: %s", c.name, got.Total, c.want, got.Formula)
	}
	if c.term != nil && math.Abs(c.term(&got.Expected)-c.is) > 1e-9 {
		t.Errorf("%s: %v, want %v: %+v", c.name, c.term(&got.Expected), c.is, got.Expected)
	}
	if !strings.HasPrefix(got.Formula, decimals(got.Total, 4)+" = ") {
		t.Errorf("%s: %s", c.name, got.Formula)
	}
}

// idle is the cost of an idle node: first token and answer.
const idle = 2*2.62 + 100*(0.01+own)

func firstOf(t *ExpectedTerms) float64   { return t.First }
func prefillOf(t *ExpectedTerms) float64 { return t.Prefill }
func sharedOf(t *ExpectedTerms) float64  { return t.Shared }
func lateOf(t *ExpectedTerms) float64    { return t.Late }

// shared lets so many running requests have the first 64 blocks of the prompt.
func shared(sharers int) func(*Policy, *Situation) {
	return func(_ *Policy, s *Situation) { s.Sharers, s.Shared = sharers, 64 }
}

// TestExpectedTerms checks every term of the cost.
func TestExpectedTerms(t *testing.T) {
	for _, c := range []expectedCase{
		{name: "idle", want: idle, term: firstOf, is: 2.62},
		{name: "wait", at: func(t *Timing) { t.Wait = 4 }, want: idle + 2*4, term: firstOf, is: 6.62},
		{name: "overdue", at: func(t *Timing) { t.Wait, t.Overdue = 4, 1 }, want: idle + 2*5, term: firstOf, is: 7.62},
		{name: "silent and overdue", at: func(t *Timing) { t.Overdue, t.Silent = 1, 2 }, want: idle + 2*3},
		{name: "all are overdue", at: func(t *Timing) { t.Overdue = 8 }, want: idle + 2*(8-2*3),
			edit: func(_ *Policy, s *Situation) { s.Times[1].Overdue, s.Times[1].Silent = 2, 1 }},
		{name: "others are overdue", at: func(t *Timing) { t.Overdue = 8 }, want: idle,
			edit: func(_ *Policy, s *Situation) { s.Times[1].Overdue = 4 }},
		{name: "decoding", at: func(t *Timing) { t.Decoding = 3 },
			want: idle + 2*2*3*0.001 + 100*3*0.001 + 5*(3*1.6+3*50*own)},
		{name: "blocks", at: func(t *Timing) { t.Blocks = 500 }, want: idle + 2*2*0.05 + 100*0.05},
		{name: "slow prefill", at: func(t *Timing) { t.PrefillFactor = 3 },
			want: idle + 2*2*2.62, term: prefillOf, is: 4.8},
		{name: "slow decode", at: func(t *Timing) { t.DecodeFactor, t.Decoding = 3, 1 },
			want: idle + 2*2*0.001 + 2*100*(0.01+own) + 3*100*0.001 + 5*(1.6+3*50*own)},
		{name: "adapter", at: func(t *Timing) { t.Load = 2 }, want: idle + 2*2, term: firstOf, is: 4.62},
		{name: "half is cached", node: Candidate{Matched: 50}, want: idle - 2*0.8, term: prefillOf, is: 0.8},
		{name: "coming", node: Candidate{Matched: 25, Coming: 50}, want: idle - 2*0.8, term: prefillOf, is: 0.8},
		{name: "all is cached", node: Candidate{Matched: 100}, want: idle - 2*1.6, term: prefillOf, is: 0},
		{name: "more than all is cached", node: Candidate{Matched: 200}, want: idle - 2*1.6,
			term: prefillOf, is: 0},
		{name: "host", node: Candidate{Host: 40}, term: prefillOf, is: 1.6 - 0.016*0.75*40},
		{name: "disk", node: Candidate{Disk: 40}, term: prefillOf, is: 1.6 - 0.016*0.25*40},
		{name: "all tiers", node: Candidate{Matched: 20, Host: 40, Disk: 80}, term: prefillOf, is: 1.6 - 0.016*(20+15+10)},
		{name: "host before device", node: Candidate{Matched: 20, Host: 10, Disk: 5}, term: prefillOf, is: 1.6 - 0.016*20},
		{name: "disk before host", node: Candidate{Host: 40, Disk: 10}, term: prefillOf, is: 1.6 - 0.016*30},
		{name: "experts", node: Candidate{Matched: 20, Fit: Fit{Experts: 0.5}}, term: prefillOf, is: 1.6 - 0.016*30},
		{name: "experts of other tiers", node: Candidate{Host: 40, Fit: Fit{Experts: 1}},
			term: prefillOf, is: 1.6 - 0.016*30},
		{name: "experts up to the last full block", node: Candidate{Matched: 80, Fit: Fit{Experts: 1}}, term: prefillOf,
			is: 0.01, edit: func(_ *Policy, s *Situation) { s.Tokens = 1610 }},
		{name: "experts up to the prompt", node: Candidate{Matched: 80, Fit: Fit{Experts: 1}}, term: prefillOf, is: 0},
		{name: "negative", node: Candidate{Matched: -4, Coming: -4, Host: -1, Disk: -1}, want: idle},
		{name: "labels", node: Candidate{Fit: Fit{Labels: 0.5}}, want: idle * 0.6299485326},
		{name: "labels, negative", node: Candidate{Fit: Fit{Labels: -1}}, want: idle * 2.1416876847},
		{name: "labels, unknown", node: Candidate{Fit: Fit{Labels: math.NaN()}}, want: idle},
		{name: "a pin, no labels", node: Candidate{Fit: Fit{Labels: 0.5}}, want: idle,
			edit: func(_ *Policy, s *Situation) { s.Pinned = true }},
		{name: "slots", node: Candidate{EngineSlots: 4, InFlight: 2, Others: 1}, want: idle},
		{name: "over the slots", node: Candidate{EngineSlots: 4, InFlight: 3, Others: 2},
			term: firstOf, is: 2.62 + 2./4*100*0.01},
		{name: "over the slots of a slow node", node: Candidate{EngineSlots: 4, InFlight: 4},
			at: func(t *Timing) { t.DecodeFactor = 3 }, term: firstOf, is: 2.62 + 1./4*100*0.03},
		{name: "no slots", node: Candidate{InFlight: 500}, want: idle},
		{name: "two share the beginning", edit: shared(2), want: idle, term: sharedOf, is: 0},
		{name: "three share the beginning", edit: shared(3), want: idle - 2*1.024*7/8, term: firstOf, is: 2.62},
		{name: "a part of it is held", node: Candidate{Matched: 40}, edit: shared(4), term: sharedOf,
			is: 0.384 * 14 / 15},
		{name: "it is held", node: Candidate{Coming: 64}, edit: shared(9), term: sharedOf, is: 0},
		{name: "it is held and more", node: Candidate{Matched: 80}, edit: shared(9), term: sharedOf, is: 0},
		{name: "at a slow node", at: func(t *Timing) { t.PrefillFactor = 3 }, edit: shared(3), term: sharedOf,
			is: 3 * 1.024 * 7 / 8},
		{name: "no output", edit: func(_ *Policy, s *Situation) { s.Output = 0 }, want: 2 * 2.62},
		{name: "no tokens", edit: func(_ *Policy, s *Situation) { s.Tokens = -7 }, term: firstOf, is: 1.02},
	} {
		c.check(t)
	}
	pairs := rates
	pairs.Pair = 1e-6
	quadratic := expectedCase{name: "pairs", node: Candidate{Matched: 50}, at: func(t *Timing) { t.Rates = &pairs },
		term: prefillOf, is: 0.8 + 800*1200e-6}
	quadratic.check(t)
}

// TestExpectedSettings checks the effect of each setting, and that 0 switches its term off.
func TestExpectedSettings(t *testing.T) {
	busy := func(t *Timing) { t.Wait, t.Decoding, t.Pressing = 4, 3, 2 }
	node := Candidate{Matched: 40, Coming: 50} // 0.8 s of prefill, 0.224 s of the beginning
	const first, answer = 1 + 0.8 + 2*0.013, 100 * (0.015 + own)
	const stalls, slower, begins = 3 * 0.8, 3 * 50 * own, 0.224
	cost := func(s PredictedSettings) float64 {
		return s.First*(first+s.Wait*4-begins*(1-1/(1+2*s.Burst))) + answer + s.Others*(stalls+slower)
	}
	for name, set := range map[string]func(s *PredictedSettings){
		"as they are": func(*PredictedSettings) {},
		"first":       func(s *PredictedSettings) { s.First = 9 }, "no first": func(s *PredictedSettings) { s.First = 0 },
		"wait": func(s *PredictedSettings) { s.Wait = 0.5 }, "no wait": func(s *PredictedSettings) { s.Wait = 0 },
		"others": func(s *PredictedSettings) { s.Others = 1 }, "no others": func(s *PredictedSettings) { s.Others = 0 },
		"burst": func(s *PredictedSettings) { s.Burst = 1 }, "no burst": func(s *PredictedSettings) { s.Burst = 0 },
	} {
		want := byHand
		set(&want)
		c := expectedCase{name: name, node: node, at: busy, want: cost(want),
			edit: func(p *Policy, s *Situation) { set(&p.Predicted); shared(4)(p, s) }}
		c.check(t)
	}
	tiers := expectedCase{name: "tiers", node: Candidate{Host: 40, Disk: 80},
		term: prefillOf, is: 1.6 - 0.016*(20+40*0.125),
		edit: func(p *Policy, _ *Situation) { p.Score.Tiers = Tiers{Host: 0.5, Disk: 0.125} }}
	tiers.check(t)
}

// TestExpectedOfACandidate checks what is expected of one candidate: the terms of its cost, without
// preferences.
func TestExpectedOfACandidate(t *testing.T) {
	p := Default()
	p.Mode, p.Predicted = Predicted, byHand
	s := situationOf(3)
	s.Candidates[1] = Candidate{EngineSlots: 4, InFlight: 3, Others: 2}
	s.Candidates[2] = Candidate{Matched: 20, Fit: Fit{Experts: 0.5, Labels: 0.5}}
	s.Times[1].Load, s.Times[2].Wait, s.Times[2].Decoding = 2, 4, 3
	var e Explanation
	p.Explain(s, &e)
	if got := p.Expected(s, 1); got != e.Terms[1].Expected || math.Abs(got.First-(2.62+2+2./4*100*0.01)) > 1e-9 {
		t.Errorf("%+v, want %+v", got, e.Terms[1].Expected)
	}
	p.Predicted.Wait = 0
	got := p.Expected(s, 2)
	if want := 2.62 + 4 + 2*3*0.001 - 0.016*20; math.Abs(got.First-want) > 1e-9 ||
		math.Abs(got.Step-(0.01+3*0.001+own)) > 1e-9 || p.Predicted.Wait != 0 || s.Candidates[2].Experts != 0.5 {
		t.Errorf("%+v, want a first token after %v s", got, want)
	}
	if n := testing.AllocsPerRun(50, func() { p.Expected(s, 2) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTargets checks the seconds beyond the policy's target and the request's own.
func TestTargets(t *testing.T) {
	const step = 0.01 + own
	targets := func(first, each float64) func(*Policy, *Situation) {
		return func(_ *Policy, s *Situation) { s.Overrides.Targets = Targets{First: first, Step: each} }
	}
	for _, c := range []expectedCase{
		{name: "none", term: lateOf, is: 0},
		{name: "kept", edit: targets(3, 0.1), want: idle, term: lateOf, is: 0},
		{name: "first token", edit: targets(2.5, 0), want: idle + 100*0.12, term: lateOf, is: 0.12},
		{name: "steps", edit: targets(0, 0.02), want: idle + 100*100*(step-0.02), term: lateOf, is: 100 * (step - 0.02)},
		{name: "both", edit: targets(2.5, 0.02), term: lateOf, is: 0.12 + 100*(step-0.02)},
		{name: "steps of no output", term: lateOf, is: 0.01 + 0.001 + 0.0001*100 - 0.02,
			edit: func(_ *Policy, s *Situation) { s.Overrides.Targets.Step, s.Output = 0.02, 0 }},
		{name: "the policy's", edit: func(p *Policy, _ *Situation) { p.TTFTSloMs = 2500 }, term: lateOf, is: 0.12},
		{name: "the request's own", term: lateOf, is: 0, edit: func(p *Policy, s *Situation) {
			p.TTFTSloMs, s.Overrides.Targets.First = 2500, 3
		}},
		{name: "the policy's, and the request's for steps", term: lateOf, is: 0.12 + 100*(step-0.02),
			edit: func(p *Policy, s *Situation) { p.TTFTSloMs, s.Overrides.Targets.Step = 2500, 0.02 }},
		{name: "by labels too", node: Candidate{Fit: Fit{Labels: 0.5}}, edit: targets(2.5, 0),
			want: (idle + 12) * 0.6299485326},
	} {
		c.check(t)
	}
	// A target outweighs everything else.
	p, s := Default(), situationOf(2)
	p.Mode = Predicted
	s.Times[0].Wait, s.Times[1].Decoding, s.Output = 2, 20, 500
	if s.Overrides.Targets.First = 3; p.Pick(s) != 1 {
		t.Error("a late node wins")
	}
	if s.Overrides.Targets.First = 0; p.Pick(s) != 0 {
		t.Error("without a target the busy node wins")
	}
}

// situationOf returns a pick among n idle nodes.
func situationOf(n int) *Situation {
	s := &Situation{Candidates: blanks(n), Blocks: 100, Tokens: 1600, Output: 100}
	for range n {
		s.Times = append(s.Times, timed())
	}
	return s
}

// TestExpectedTies checks costs within 2 % of the lowest early cost: rendezvous by the prompt
// decides, and without a key the draw is fair.
func TestExpectedTies(t *testing.T) {
	p, e := Default(), Explanation{}
	p.Mode, p.Predicted = Predicted, PredictedSettings{First: 1, Wait: 1}
	s := situationOf(4)
	s.Output = 0                                                        // an idle node costs 2.62
	s.Times[1].Wait, s.Times[2].Wait, s.Times[3].Wait = 0.052, 0.053, 9 // just within, just beyond, far beyond
	const tied = "2 candidates within 0.0524 s of the lowest expected cost 2.62 s, chosen "
	had := [4]int{}
	for i := range uint64(1000) {
		s.Key, s.Random = key(mix(i)|1), mix(i)
		at := p.Explain(s, &e)
		if had[at]++; e.Why != tied+"by rendezvous of node id and session or prompt" {
			t.Fatal(e.Why)
		}
		if s.Random = mix(i + 5000); p.Pick(s) != at {
			t.Fatal("an equal key goes to another node")
		}
	}
	if had[0] < 400 || had[1] < 400 || had[0]+had[1] != 1000 {
		t.Errorf("by rendezvous %v", had)
	}
	s.Key, had = nil, [4]int{}
	for i := range uint64(1000) {
		s.Random = mix(i)
		at := p.Explain(s, &e)
		if had[at]++; e.Why != tied+"at random, the prompt has no key" {
			t.Fatal(e.Why)
		}
	}
	if had[0] < 400 || had[1] < 400 || had[0]+had[1] != 1000 {
		t.Errorf("at random %v", had)
	}
	if s.Times[1].Wait = 1; p.Explain(s, &e) != 0 || e.Why != "lowest expected cost 2.62 s of 4 candidates" {
		t.Error(e.Why)
	}
	lone := &countingKey{value: 1}
	s.Candidates[2].MaxConcurrent = -1
	if s.Key = lone; p.Explain(s, &e) != 0 || e.Why != "lowest expected cost 2.62 s of 3 candidates" {
		t.Errorf("%s; asked %d times", e.Why, lone.asked)
	}
}

// TestTries checks that a request that may try a node goes to the cheapest idle one of an unknown
// speed, if the best node's speed is known, and that nothing else is tried.
func TestTries(t *testing.T) {
	const why = "it is idle, and the speed of its kind of engine is unknown, or known from long ago"
	known, unknown := rates, rates
	unknown.Token = 2 * rates.Token
	for name, c := range map[string]struct {
		edit func(s *Situation)
		want int
	}{
		"cheapest":           {func(*Situation) {}, 2},
		"the other one":      {func(s *Situation) { s.Candidates[2].InFlight = 1 }, 1},
		"others' requests":   {func(s *Situation) { s.Candidates[2].Others = 1 }, 1},
		"no room":            {func(s *Situation) { s.Candidates[2].MaxConcurrent = -1 }, 1},
		"adapter":            {func(s *Situation) { s.Candidates[2].Loads = true }, 1},
		"no try":             {func(s *Situation) { s.Tries = false }, 0},
		"session":            {func(s *Situation) { s.Home = 1 }, 0},
		"all are known":      {func(s *Situation) { s.Times[1].Unproven, s.Times[2].Unproven = false, false }, 0},
		"the best is not":    {func(s *Situation) { s.Times[0].Unproven = true }, 0},
		"the cheaper is not": {func(s *Situation) { s.Times[2].Unproven = false }, 1},
	} {
		p, e, s := Default(), Explanation{}, situationOf(3)
		p.Mode, s.Tries = Predicted, true
		s.Times[0].Rates, s.Times[1].Rates, s.Times[2].Rates = &known, &unknown, &unknown
		s.Times[1].Wait, s.Times[2].Wait, s.Times[1].Unproven, s.Times[2].Unproven = 9, 8, true, true
		c.edit(s)
		if at := p.Explain(s, &e); at != c.want || p.Pick(s) != at || e.Why == why != (at > 0) {
			t.Errorf("%s: %d, %s", name, at, e.Why)
		}
	}
}

// TestLongAnswersLeaveCachesTheirWorth checks that the length of an answer makes no costs equal: a
// node that holds a fifth of the prompt wins, whatever else the answer takes.
func TestLongAnswersLeaveCachesTheirWorth(t *testing.T) {
	for _, decoding := range []float64{0, 20} {
		p, e := Default(), Explanation{}
		p.Mode, p.Predicted = Predicted, PredictedSettings{First: 1, Wait: 1, Others: 1}
		s := situationOf(2)
		s.Output, s.Candidates[1].Matched = 4000, 20
		s.Times[0].Decoding, s.Times[1].Decoding = decoding, decoding
		for i := range uint64(16) {
			s.Key, s.Random = key(mix(i)|1), mix(i)
			if at := p.Explain(s, &e); at != 1 || p.Pick(s) != 1 {
				t.Fatalf("beside %v requests: %s", decoding, e.Why)
			}
		}
		if first, second := e.Terms[0].Total, e.Terms[1].Total; first > second*1.01 {
			t.Errorf("beside %v requests the costs are %v and %v, not within 1 %%", decoding, first, second)
		}
	}
}

// TestExpectedSessions checks that a session stays at its node while the cost there is at most a
// tenth higher.
func TestExpectedSessions(t *testing.T) {
	const why = "its session is there, and its expected cost is within a tenth of the lowest"
	for _, c := range []struct {
		wait float64 // at the session's node; an idle node costs 2.62
		full bool
		want int
		why  string
	}{
		{wait: 0.26, want: 2, why: why}, {wait: 0.01, want: 2, why: why},
		{wait: 0.27, want: 0, why: "lowest expected cost 2.62 s of 3 candidates"},
		{wait: 0, full: true, want: 0, why: "lowest expected cost 2.62 s of 2 candidates"},
	} {
		p, e := Default(), Explanation{}
		p.Mode, p.Predicted = Predicted, PredictedSettings{First: 1, Wait: 1}
		s := situationOf(3)
		s.Output, s.Home = 0, 3
		s.Times[1].Wait, s.Times[2].Wait = 1, c.wait
		if c.full {
			s.Candidates[2].MaxConcurrent = -1
		}
		for i := range uint64(20) {
			s.Random = mix(i)
			if at := p.Explain(s, &e); at != c.want || p.Pick(s) != at || e.Why != c.why {
				t.Fatalf("%+v: %d, %s", c, at, e.Why)
			}
		}
	}
	p, e, s := Default(), Explanation{}, situationOf(2)
	p.Mode = Predicted
	if s.Home, s.Times[1].Wait = 1, 5; p.Explain(s, &e) != 0 || strings.Contains(e.Why, "session") {
		t.Errorf("at the cheapest node: %s", e.Why)
	}
}

// TestWithoutTimes checks that a pick without times is that of mode score.
func TestWithoutTimes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	p, score := Default(), Default()
	p.Mode = Predicted
	var a, b Explanation
	for range 500 {
		s := situation(p, make([]Candidate, 1+rng.IntN(6)), 20, key(rng.Uint64N(3)), rng.Uint64())
		for i := range s.Candidates {
			s.Candidates[i] = randomCandidate(rng)
		}
		if rng.IntN(2) == 0 {
			s.Times = make([]Timing, len(s.Candidates)+1)
		}
		at := p.Explain(s, &a)
		if want := score.Explain(s, &b); at != want || p.Pick(s) != at || !reflect.DeepEqual(a, b) {
			t.Fatalf("picks %d, %s; mode score %d, %s", at, a.Why, want, b.Why)
		}
	}
}

// randomTiming returns what may be known about a node.
func randomTiming(rng *rand.Rand) Timing {
	r := &predict.Rates{
		Base: rng.Float64(), Token: rng.Float64() / 1000, Pair: float64(rng.IntN(2)) * rng.Float64() * 1e-6,
		Steps: rng.Float64(),
		Each:  rng.Float64() / 10, Step: rng.Float64() / 10, Sequence: rng.Float64() / 1000, Block: rng.Float64() / 1e5,
	}
	t := Timing{
		Speed: predict.Speed{
			Rates: r, PrefillFactor: math.Exp(rng.NormFloat64()), DecodeFactor: math.Exp(rng.NormFloat64()),
		},
		Wait: float64(rng.IntN(3)) * rng.Float64(), Pressing: float64(rng.IntN(4)), Decoding: float64(rng.IntN(30)),
		Blocks: float64(rng.IntN(5000)), Load: float64(rng.IntN(2)) * rng.Float64(),
		Overdue: float64(rng.IntN(2)) * rng.Float64(), Silent: float64(rng.IntN(2)) * rng.Float64(),
	}
	if rng.IntN(8) == 0 {
		t = Timing{Speed: predict.Untaught()}
	}
	return t
}

// randomExpectation returns a random pick with times, and a policy for it.
func randomExpectation(rng *rand.Rand, n int) (*Policy, *Situation) {
	p := Default()
	p.Mode = Predicted
	weight := func() float64 { return float64(rng.IntN(3)) * rng.Float64() * 10 }
	p.Predicted = PredictedSettings{First: weight(), Wait: weight(), Others: weight(), Burst: weight()}
	p.TTFTSloMs = float64(rng.IntN(2)) * rng.Float64() * 1000
	s := situation(p, make([]Candidate, n), rng.IntN(30), key(rng.Uint64N(3)), rng.Uint64())
	s.Tokens += rng.Int64N(16)
	s.Output = float64(rng.IntN(2)) * rng.Float64() * 2000
	for i := range s.Candidates {
		s.Candidates[i] = randomCandidate(rng)
		s.Times = append(s.Times, randomTiming(rng))
		c := &s.Candidates[i]
		if rng.IntN(3) == 0 {
			c.Host, c.Disk, c.Experts, c.Loads = rng.Int32N(30)-1, rng.Int32N(30)-1, rng.Float32(), true
		}
		if i > 0 && rng.IntN(3) == 0 { // a node that equals another one
			id := c.IDHash
			s.Candidates[i], s.Times[i] = s.Candidates[i-1], s.Times[i-1]
			c.IDHash = id
		}
	}
	if n > 0 {
		s.Home = rng.IntN(n + 1)
	}
	if rng.IntN(2) == 0 {
		s.Overrides.Targets = Targets{First: rng.Float64(), Step: rng.Float64() / 50}
	}
	return p, s
}

// TestExpectationsAgreeWithPicks compares Explain with Pick in random situations. All terms are
// finite and not negative, the winner has room, and no other node is much cheaper.
func TestExpectationsAgreeWithPicks(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 3))
	for i := range 4000 {
		p, s := randomExpectation(rng, rng.IntN(10))
		var e Explanation
		want := p.Pick(s)
		if got := p.Explain(s, &e); got != want || e.Why == "" {
			t.Fatalf("%d: explained %d (%s), picked %d", i, got, e.Why, want)
		}
		room := 0
		for k := range s.Candidates {
			x := reflect.ValueOf(e.Terms[k].Expected)
			for f := range x.NumField() {
				if v := x.Field(f).Float(); !(v >= 0 && v < 1e12) {
					t.Fatalf("%d: %s is %v of %+v", i, x.Type().Field(f).Name, v, s.Times[k])
				}
			}
			if !s.Candidates[k].Room() {
				continue
			}
			room++
			most := 1 + alike
			if s.Home == want+1 {
				most = 1 + loyal
			}
			if e.Terms[want].Total > e.Terms[k].Total*most+1e-9 {
				t.Fatalf("%d: %v wins against %v, %s", i, e.Terms[want].Total, e.Terms[k].Total, e.Why)
			}
		}
		if (want < 0) != (room == 0) || want >= 0 && !s.Candidates[want].Room() {
			t.Fatalf("%d: %d of %d nodes with room", i, want, room)
		}
	}
}

// TestExpectationsOfHugeNumbers checks that a node wins whatever the figures are.
func TestExpectationsOfHugeNumbers(t *testing.T) {
	p, e := Default(), Explanation{}
	p.Mode = Predicted
	p.Predicted = PredictedSettings{First: 1000, Wait: 1000, Others: 1000, Burst: 1000}
	slow := predict.Rates{Base: 1e9, Token: 1e9, Pair: 1e9, Steps: 1e9, Each: 1e9, Step: 1e9, Sequence: 1e9, Block: 1e9}
	s := situationOf(2)
	for i := range s.Times {
		s.Times[i] = Timing{
			Speed: predict.Speed{Rates: &slow, PrefillFactor: 32, DecodeFactor: 32}, Wait: 1e9, Pressing: 1e6,
			Decoding: 1e6,
			Blocks:   1e12, Load: 1e6}
		s.Candidates[i].InFlight, s.Candidates[i].MaxConcurrent, s.Candidates[i].EngineSlots = math.MaxInt32, 0, 1
	}
	s.Tokens, s.Blocks, s.Output = math.MaxInt64, math.MaxInt32, math.MaxUint32
	s.Overrides.Targets = Targets{First: 1e-9, Step: 1e-9}
	if at := p.Explain(s, &e); at < 0 || p.Pick(s) != at {
		t.Errorf("%d, %s", at, e.Why)
	}
}

func TestExpectationsAllocateNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for _, n := range []int{8, 1000} {
		p, s := randomExpectation(rng, n)
		p.Pick(s)
		if a := testing.AllocsPerRun(50, func() { p.Pick(s) }); a != 0 {
			t.Errorf("%d nodes: %v allocations", n, a)
		}
	}
}
