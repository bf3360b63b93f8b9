package policy

import (
	"math"
	"math/rand/v2"
	"testing"
)

// costCase is one node with its cost for a prompt of 1600 tokens, worked by hand.
type costCase struct {
	name  string
	node  Candidate
	edit  func(c *CostSettings, s *Situation) // nil: the defaults
	other *Candidate                          // nil: the node is the only candidate
	want  float64
}

// check explains a pick and compares the cost, and the formula's numbers, with the case's.
func (c *costCase) check(t *testing.T) {
	t.Helper()
	p, e := Default(), Explanation{}
	p.Mode = Cost
	s := &Situation{Candidates: []Candidate{c.node}, Blocks: 100, Tokens: 1600}
	if c.other != nil {
		s.Candidates = append(s.Candidates, *c.other)
	}
	if c.edit != nil {
		c.edit(&p.Cost, s)
	}
	p.Explain(s, &e)
	got := e.Terms[0].Cost
	if math.Abs(got.Total-c.want) > 1e-6 || e.Terms[0].Total != got.Total {
		t.Errorf("%s: cost %v, want %v: %s", c.name, got.Total, c.want, got.formula())
	}
}

// TestCostTerms: 1600 tokens are 100 blocks to compute and 100 blocks to keep.
func TestCostTerms(t *testing.T) {
	for _, c := range []costCase{
		{name: "nothing", want: 100 + 100},
		{name: "device", node: Candidate{Matched: 20}, want: 80 + 100},
		{name: "coming", node: Candidate{Matched: 20, Coming: 30}, want: 70 + 100},
		{name: "host", node: Candidate{Host: 40}, want: 100 - 0.75*40 + 100},
		{name: "host behind device", node: Candidate{Matched: 20, Host: 40}, want: 100 - 20 - 0.75*20 + 100},
		{name: "host before device", node: Candidate{Matched: 20, Host: 10}, want: 80 + 100},
		{name: "disk", node: Candidate{Disk: 40}, want: 100 - 0.25*40 + 100},
		{name: "all tiers", node: Candidate{Matched: 20, Host: 40, Disk: 80}, want: 100 - 20 - 15 - 10 + 100},
		{name: "disk before host", node: Candidate{Host: 40, Disk: 10}, want: 100 - 30 + 100},
		{name: "active prefill", node: Candidate{PrefillTokens: 320}, want: 20 + 100 + 100},
		{name: "all cached, active prefill", node: Candidate{Matched: 100, PrefillTokens: 320}, want: 20 + 100},
		{name: "active blocks, rounded", node: Candidate{ActiveBlocks: 40.5}, want: 100 + 141},
		{name: "unknown active blocks", node: Candidate{ActiveBlocks: math.NaN()}, want: 200},
		{name: "shared active blocks", node: Candidate{ActiveBlocks: 40, SharedActive: 30}, want: 100 + 40 + 70},
		{name: "all active", node: Candidate{ActiveBlocks: 40, SharedActive: 300}, want: 100 + 40},
		{name: "shared cache without a multiplier", node: Candidate{SharedCache: 60}, want: 200},
		{name: "requests without a weight", node: Candidate{InFlight: 60}, want: 200},
		{name: "labels", node: Candidate{Fit: Fit{Labels: 0.5}}, want: 200 * 0.6299485326},
		{name: "labels, negative", node: Candidate{Fit: Fit{Labels: -1}}, want: 200 * 2.1416876847},
		{name: "labels, unknown", node: Candidate{Fit: Fit{Labels: math.NaN()}}, want: 200},
		{name: "more prefill than the other", node: Candidate{Matched: 20, PrefillTokens: 320},
			other: &Candidate{}, want: 20 + 80 + 100},
	} {
		c.check(t)
	}
}

func TestCostSettings(t *testing.T) {
	decay := func(c *CostSettings, _ *Situation) { c.OverlapScoreCreditDecay = 0.5 }
	for _, c := range []costCase{
		{name: "credit", node: Candidate{Matched: 20, Host: 40}, want: 100 - 10 - 15 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCredit = 0.5 }},
		{name: "credit above 1", node: Candidate{Matched: 20}, want: 60 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCredit = 2 }},
		{name: "never below 0", node: Candidate{Matched: 80}, want: 100,
			edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCredit = 2 }},
		{name: "host weight", node: Candidate{Host: 40}, want: 100 - 20 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.HostCacheHitWeight = 0.5 }},
		{name: "disk weight", node: Candidate{Disk: 40}, want: 100 - 20 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.DiskCacheHitWeight = 0.5 }},
		{name: "scale", node: Candidate{Matched: 20}, want: 2*80 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.PrefillLoadScale = 2 }},
		{name: "request weight", node: Candidate{InFlight: 4, Others: 1}, want: 200 + 3*5,
			edit: func(c *CostSettings, _ *Situation) { c.ActiveRequestWeight = 3 }},
		{name: "labels weigh requests too", node: Candidate{InFlight: 10, Fit: Fit{Labels: 0.5}},
			want: 230 * 0.6299485326, edit: func(c *CostSettings, _ *Situation) { c.ActiveRequestWeight = 3 }},
		{name: "shared cache", node: Candidate{Matched: 20, SharedCache: 60}, want: 100 - 20 - 0.5*40 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.SharedCacheMultiplier = new(0.5) }},
		{name: "shared cache behind device", node: Candidate{Matched: 60, SharedCache: 40}, want: 40 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.SharedCacheMultiplier = new(0.5) }},
		{name: "other hosts as measured", node: Candidate{Matched: 20, Host: 40, SharedCache: 60, Saved: PartOf(0.5)},
			want: 100 - 20 - 15 - 0.75*0.5*20 + 100},
		{name: "a disk slower than other hosts", node: Candidate{Disk: 40, SharedCache: 60, Saved: PartOf(0.75)},
			want: 100 - 0.5625*60 + 100},
		{name: "a disk faster than other hosts", node: Candidate{Disk: 40, SharedCache: 60, Saved: PartOf(0.25)},
			want: 100 - 0.25*40 - 0.1875*20 + 100},
		{name: "a multiplier of 0", node: Candidate{SharedCache: 60, Saved: PartOf(1)}, want: 200,
			edit: func(c *CostSettings, _ *Situation) { c.SharedCacheMultiplier = new(0.0) }},
		{name: "no reuse", node: Candidate{ActiveBlocks: 40, SharedActive: 30}, want: 100 + 140,
			edit: func(c *CostSettings, _ *Situation) { c.AssumeKVReuse = false }},
		{name: "no active blocks", node: Candidate{Matched: 20, ActiveBlocks: 40}, want: 80,
			edit: func(c *CostSettings, _ *Situation) { c.TrackActiveBlocks = false }},
		{name: "no prefill", node: Candidate{Matched: 20, PrefillTokens: 320}, want: 80,
			edit: func(c *CostSettings, _ *Situation) { c.TrackPrefillTokens = false }},
		{name: "decay by 10 blocks of 100", node: Candidate{Matched: 21, PrefillTokens: 320}, edit: decay,
			other: &Candidate{PrefillTokens: 160}, want: 120 - 21/1.05 + 100},
		{name: "only device decays", node: Candidate{Host: 40, Disk: 80, PrefillTokens: 320}, edit: decay,
			other: &Candidate{PrefillTokens: 160}, want: 120 - 30 - 10 + 100},
		{name: "no decay at the least", node: Candidate{Matched: 21, PrefillTokens: 320}, edit: decay,
			other: &Candidate{PrefillTokens: 640}, want: 120 - 21 + 100},
		{name: "a full node is not the least", node: Candidate{Matched: 21, PrefillTokens: 320}, edit: decay,
			other: &Candidate{MaxConcurrent: 1, InFlight: 1}, want: 120 - 21 + 100},
		{name: "an unknown load is the least", node: Candidate{Matched: 21, PrefillTokens: 320}, edit: decay,
			other: &Candidate{PrefillTokens: -1}, want: 120 - 21/1.1 + 100},
		{name: "no decay without prefill", node: Candidate{Matched: 20, PrefillTokens: 320}, other: &Candidate{},
			edit: func(c *CostSettings, s *Situation) {
				c.OverlapScoreCreditDecay, c.TrackPrefillTokens = 0.5, false
			}, want: 100 - 20},
		{name: "an unknown load", node: Candidate{Matched: 20, PrefillTokens: -1, ActiveBlocks: 40, InFlight: 5},
			edit: func(c *CostSettings, _ *Situation) { c.ActiveRequestWeight = 3 }, want: 80},
	} {
		c.check(t)
	}
}

func TestCostOfPrompts(t *testing.T) {
	tokens := func(n int64) func(*CostSettings, *Situation) {
		return func(_ *CostSettings, s *Situation) { s.Tokens = n }
	}
	unit := func(n int) func(*CostSettings, *Situation) {
		return func(c *CostSettings, _ *Situation) { c.BlockTokens = n }
	}
	for _, c := range []costCase{
		{name: "an unfinished block", edit: tokens(1610), want: 100.625 + 100},
		{name: "no tokens", node: Candidate{PrefillTokens: 320, ActiveBlocks: 5}, edit: tokens(0), want: 20 + 5},
		{name: "no tokens, decay", node: Candidate{Matched: 2, PrefillTokens: 320}, want: 20 + 2 - 2./2,
			other: &Candidate{PrefillTokens: 304},
			edit:  func(c *CostSettings, s *Situation) { s.Tokens, c.OverlapScoreCreditDecay = 0, 1 }},
		{name: "more cached than asked", node: Candidate{Matched: 10}, want: 10 - 5 + 6,
			edit: func(c *CostSettings, s *Situation) { s.Tokens, c.OverlapScoreCredit = 100, 0.5 }},
		{name: "cached tokens are whole", node: Candidate{Host: 1}, want: 5./16 - 0.3, // 4.8 tokens
			edit: func(c *CostSettings, s *Situation) { s.Tokens, c.HostCacheHitWeight = 0, 0.3 }},
		{name: "large blocks", edit: unit(64), want: (10 + 25 - 5) + (10 + 25 - 2),
			node: Candidate{Matched: 21, ActiveBlocks: 40, SharedActive: 9, PrefillTokens: 640}},
		{name: "large blocks, host", node: Candidate{Matched: 2, Host: 5}, edit: unit(64), want: 25 - 0.75 + 25},
		{name: "small blocks", node: Candidate{Matched: 20, ActiveBlocks: 7}, edit: unit(8), want: 160 + 14 + 200},
		{name: "odd blocks", node: Candidate{Matched: 20}, edit: unit(24), want: 1600./24 - 13 + 66},
		{name: "prefill only", node: Candidate{Matched: 20, ActiveBlocks: 40}, want: 80,
			edit: func(_ *CostSettings, s *Situation) {
				s.Prefill, s.Overrides.TrackActiveBlocks = true, Given(false)
			}},
		{name: "without prefill", node: Candidate{Matched: 20, ActiveBlocks: 10, PrefillTokens: 320}, want: 110 - 20,
			edit: func(c *CostSettings, s *Situation) { c.TrackPrefillTokens = false }},
		{name: "without prefill, labels", node: Candidate{Matched: 20, Fit: Fit{Labels: 0.5}}, want: 80 * 0.6299485325,
			edit: func(c *CostSettings, s *Situation) { c.TrackPrefillTokens = false }},
		{name: "without prefill, all covered",
			node: Candidate{Matched: 100, ActiveBlocks: 10, SharedActive: 100, InFlight: 3},
			edit: func(c *CostSettings, s *Situation) {
				c.TrackPrefillTokens, c.ActiveRequestWeight = false, 2
			}, want: 0 + 2*3},
		{name: "without prefill, without credit", node: Candidate{Host: 20, ActiveBlocks: 10}, want: 110,
			edit: func(c *CostSettings, s *Situation) {
				c.TrackPrefillTokens, c.OverlapScoreCredit = false, 0
			}},
		{name: "a pin, no labels", node: Candidate{Fit: Fit{Labels: 0.5}}, want: 200,
			edit: func(_ *CostSettings, s *Situation) { s.Pinned = true }},
	} {
		c.check(t)
	}
}

// TestOverrides checks that each override replaces its setting, for one request.
func TestOverrides(t *testing.T) {
	node := Candidate{Matched: 20, SharedCache: 60, ActiveBlocks: 40, SharedActive: 30} // 80 + 110
	for _, c := range []costCase{
		{name: "none", want: 80 + 110},
		{name: "credit", want: 90 + 110,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.OverlapScoreCredit = Given(0.5) }},
		{name: "scale", want: 160 + 110,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.PrefillLoadScale = Given(2.) }},
		{name: "scale of 0", want: 110,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.PrefillLoadScale = Given(0.) }},
		{name: "reuse", want: 80 + 140,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.AssumeKVReuse = Given(false) }},
		{name: "prefill", want: 90,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.TrackPrefillTokens = Given(false) }},
		{name: "shared", want: 60 + 110,
			edit: func(_ *CostSettings, s *Situation) { s.Overrides.SharedCacheMultiplier = Given(0.5) }},
	} {
		c.node = node
		c.check(t)
	}
	s := &Situation{Candidates: []Candidate{{Matched: 100}, {}}, Tokens: 1600}
	s.Overrides.Temperature = Given(1e6)
	p, picked := &Policy{Mode: Cost, Cost: Default().Cost}, [2]int{}
	for r := range uint64(1000) {
		s.Random = mix(r)
		picked[p.Pick(s)]++
	}
	if picked[1] < 450 {
		t.Errorf("picked %v at a temperature of the request", picked)
	}
}

func TestEqualCostsWinAtRandom(t *testing.T) {
	cands := make([]Candidate, 6)
	cands[0].PrefillTokens = 1
	p, counts := &Policy{Mode: Cost, Cost: Default().Cost}, [6]int{}
	for r := range uint64(5000) {
		counts[p.Pick(&Situation{Candidates: cands, Tokens: 160, Random: mix(r)})]++
	}
	for i, n := range counts {
		if i == 0 && n != 0 || i > 0 && (n < 850 || n > 1150) {
			t.Errorf("node %d got %d of 5000", i, n)
		}
	}
}

// TestTemperature compares the shares of costs 100, 120 and 140 with exp(-(c-min)/((max-min)*T)).
func TestTemperature(t *testing.T) {
	cands := []Candidate{{ActiveBlocks: 120}, {ActiveBlocks: 100}, {ActiveBlocks: 140}, {MaxConcurrent: 1, InFlight: 1}}
	for temperature, want := range map[float64][3]float64{
		1:     {0.307196, 0.506480, 0.186324}, // 1, exp(-0.5), exp(-1)
		0.25:  {0.117310, 0.866813, 0.015876}, // 1, exp(-2), exp(-4)
		1e6:   {1. / 3, 1. / 3, 1. / 3},
		1e-99: {0, 1, 0},
	} {
		p, rng := &Policy{Mode: Cost, Cost: Default().Cost}, rand.New(rand.NewPCG(2, 2))
		p.Cost.Temperature = temperature
		const draws = 40_000
		counts, e := [4]float64{}, Explanation{}
		for range draws {
			counts[p.Pick(&Situation{Candidates: cands, Random: rng.Uint64()})]++
		}
		p.Explain(&Situation{Candidates: cands}, &e)
		for i, share := range want {
			if math.Abs(counts[i]/draws-share) > 0.01 {
				t.Errorf("temperature %g: node %d got %v, want %v", temperature, i, counts[i]/draws, share)
			}
			near(t, "probability", e.Terms[i].Cost.Probability, share)
		}
		if counts[3] != 0 || e.Terms[3].Cost.Probability != 0 {
			t.Errorf("the full node got %v", counts[3])
		}
	}
	equal := []Candidate{{}, {}}
	p, counts := &Policy{Mode: Cost, Cost: Default().Cost}, [2]int{}
	p.Cost.Temperature = 0.5
	for r := range uint64(2000) {
		counts[p.Pick(&Situation{Candidates: equal, Random: mix(r)})]++
	}
	if counts[0] < 850 || counts[1] < 850 {
		t.Errorf("equal costs: %v", counts)
	}
}

func TestFormula(t *testing.T) {
	for want, c := range map[string]CostTerms{
		"125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)": {
			Total: 125.5, Scale: 1, Prefill: 100.5, Decode: 25, Cached: 15, Labels: 1},
		"60.125 = 0.25 * 100.5 + 25.0 + 10.0 (cached_blocks: 15.75)": {
			Total: 60.125, Scale: 0.25, Prefill: 100.5, Decode: 25, Requests: 10, Cached: 15.75, Labels: 1},
		"46.17 = 0.368 * (1.0 * 100.5 + 25.0) (cached_blocks: 0)": {
			Total: 46.1699, Scale: 1, Prefill: 100.5, Decode: 25, Labels: math.Exp(-1)},
		"125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15, expert_blocks: 7.5)": {
			Total: 125.5, Scale: 1, Prefill: 100.5, Decode: 25, Cached: 15, Experts: 7.5, Labels: 1},
		"12.0 = max(0, 25.0 - 15.0) + 2.0 (cached_blocks: 15)": {
			Total: 12, Scale: 1, Decode: 25, Credit: 15, Requests: 2, Cached: 15, Labels: 1, OffDecode: true},
	} {
		if got := c.formula(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestLine checks a candidate's line in each kind of mode.
func TestLine(t *testing.T) {
	s := &Situation{Blocks: 4, Tokens: 64, Candidates: []Candidate{
		{Matched: 3, PrefillTokens: 80 * 16, InFlight: 3, Others: 1, MaxConcurrent: 16, VRAM: 8, Throughput: Unknown()},
	}}
	for doc, want := range map[string]string{
		`{}`:                      "Formula for w: 0.5429 = 0.55 * (0.75 - 0.18 * 1.25) + 0.25 * 0.75 + 0.1 * 0.0 + 0.1 * 0.667 (cached_blocks: 3)",
		`{"mode":"cost"}`:         "Formula for w: 85.0 = 1.0 * 81.0 + 4.0 (cached_blocks: 3)",
		`{"mode":"round_robin"}`:  "Load of w: 4 requests on 16 slots",
		`{"mode":"device_aware"}`: "Load of w: 4 requests on 16 slots",
	} {
		p, err := Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		var e Explanation
		if p.Explain(s, &e); e.Terms[0].Line("w") != want {
			t.Errorf("%s: %s, want %s", doc, e.Terms[0].Line("w"), want)
		}
	}
}

func TestCostExplains(t *testing.T) {
	p, e := &Policy{Mode: Cost, Cost: Default().Cost}, Explanation{}
	explained := func(cands ...Candidate) string {
		p.Explain(&Situation{Candidates: cands, Tokens: 160}, &e)
		return e.Why
	}
	full := Candidate{MaxConcurrent: 1, InFlight: 1, ActiveBlocks: 5}
	if why := explained(Candidate{Matched: 5}, Candidate{}, full); why != "lowest cost 15.0 of 2 candidates" {
		t.Error(why)
	}
	if c := e.Terms[2]; c.Eligible || c.Cost.Total != 25 || c.Total != 25 {
		t.Errorf("full: %+v", c)
	}
	if why := explained(Candidate{}, Candidate{PrefillTokens: 1}, Candidate{}); why != "drawn at random among 2 of 3 "+
		"candidates with the lowest cost 20.0" {
		t.Error(why)
	}
	if why := explained(full); why != "the only candidate has no room" {
		t.Error(why)
	}
	p.Cost.Temperature = 1
	if why := explained(Candidate{}, Candidate{}); why != "drawn with probability 0.500 at temperature 1 for its cost "+
		"20.0; the lowest of 2 candidates is 20.0" {
		t.Error(why)
	}
}
