package policy

import (
	"cmp"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// util returns the use of every candidate.
func util(p *Policy, cands []Candidate) []float64 {
	f := p.Score.survey(cands)
	out := make([]float64, len(cands))
	for i := range cands {
		var t Terms
		p.Score.total(&cands[i], &f, 0, &t)
		out[i] = 1 - t.Load
	}
	return out
}

// TestLoadByHand checks util: the larger one of busy/slots and of busy requests relative to the
// fleet's highest, at least 32. Slots are the lower of limit and engine's slots, else the mean of
// the known ones. Nodes with more slots than others may have more busy requests.
func TestLoadByHand(t *testing.T) {
	type node struct{ busy, limit, engine int32 }
	for name, c := range map[string]struct {
		nodes []node
		want  []float64
	}{
		"stated":                   {[]node{{4, 16, 0}, {4, 16, 0}}, []float64{4. / 16, 4. / 16}},
		"stated, many slots":       {[]node{{8, 256, 0}, {4, 256, 0}}, []float64{8. / 32, 4. / 32}},
		"stated, the highest":      {[]node{{64, 256, 0}, {48, 256, 0}}, []float64{1, 0.75}},
		"stated, of two sizes":     {[]node{{40, 64, 0}, {60, 192, 0}}, []float64{1, 0.5}},
		"told by the engine":       {[]node{{4, 0, 8}, {12, 0, 8}}, []float64{0.5, 1}},
		"the lower of both":        {[]node{{4, 16, 8}, {4, 8, 16}}, []float64{0.5, 0.5}},
		"one knows nothing":        {[]node{{6, 8, 0}, {6, 0, 16}, {6, 0, 0}}, []float64{0.75, 0.375, 0.5}},
		"nobody knows, nobody's":   {[]node{{0, 0, 0}, {0, 0, 0}}, []float64{0, 0}},
		"nobody knows, few":        {[]node{{8, 0, 0}, {0, 0, 0}}, []float64{8. / 32, 0}},
		"nobody knows, many":       {[]node{{40, 0, 0}, {20, 0, 0}, {80, 0, 0}}, []float64{0.5, 0.25, 1}},
		"nobody knows, one has it": {[]node{{90, 0, 0}, {0, 0, 0}, {0, 0, 0}}, []float64{1, 0, 0}},
		"alone":                    {[]node{{90, 0, 0}}, []float64{1}},
	} {
		cands := blanks(len(c.nodes))
		for i, n := range c.nodes {
			cands[i].InFlight, cands[i].MaxConcurrent, cands[i].EngineSlots = n.busy, n.limit, n.engine
		}
		for i, got := range util(Default(), cands) {
			if math.Abs(got-c.want[i]) > 1e-9 {
				t.Errorf("%s: util %v of node %d, want %v", name, got, i, c.want[i])
			}
		}
	}
}

// TestOccupancyOfAnyFleet compares the measures of fleets of equal and of different nodes with the
// measures by their definitions.
func TestOccupancyOfAnyFleet(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 3000 {
		cands := make([]Candidate, 1+rng.IntN(50))
		sizes := []int32{0, rng.Int32N(300), rng.Int32N(300)}[:1+rng.IntN(3)]
		slots, known := 0.0, 0.0
		for i := range cands {
			c := &cands[i]
			c.InFlight, c.EngineSlots = rng.Int32N(100), sizes[rng.IntN(len(sizes))]
			if c.EngineSlots > 0 {
				slots, known = slots+float64(c.EngineSlots), known+1
			}
		}
		mean := slots / max(known, 1)
		alike := func(c *Candidate) float64 {
			if c.EngineSlots > 0 {
				return float64(c.InFlight) * mean / float64(c.EngineSlots)
			}
			return float64(c.InFlight)
		}
		most, free := float64(busyLeast), 0.0
		for i := range cands {
			most = max(most, alike(&cands[i]))
		}
		for i := range cands {
			own := cmp.Or(float64(cands[i].EngineSlots), mean, most)
			free = max(free, own-float64(cands[i].InFlight))
		}
		l := occupancyOf(cands)
		near(t, "most free slots", l.freeMost, free)
		for i := range cands {
			want := alike(&cands[i]) / most
			if mean > 0 {
				want = max(want, alike(&cands[i])/mean)
			}
			near(t, "load", l.of(&cands[i]), want)
		}
	}
}

// TestLoadGrowsWithBusy checks that one more request never makes a node look less used. util and
// capacity must stay within [0,1].
func TestLoadGrowsWithBusy(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		cands := make([]Candidate, 1+rng.IntN(8))
		for i := range cands {
			cands[i] = randomCandidate(rng)
			cands[i].InFlight = rng.Int32N(200)
			if rng.IntN(2) == 0 {
				cands[i].MaxConcurrent, cands[i].EngineSlots = 0, 0
			}
		}
		i := rng.IntN(len(cands))
		before := util(Default(), cands)[i]
		cands[i].InFlight += 1 + rng.Int32N(50)
		p, terms := Default(), Terms{}
		f := p.Score.survey(cands)
		for k := range cands {
			p.Score.total(&cands[k], &f, 0, &terms)
			if u, c := terms.Load, terms.Capacity; u < 0 || u > 1 || c < 0 || c > 1 || math.IsNaN(u+c) {
				t.Fatalf("load %v, capacity %v", u, c)
			}
		}
		if after := util(p, cands)[i]; after < before-1e-12 {
			t.Fatalf("util fell from %v to %v with more requests: %+v", before, after, cands)
		}
	}
}

// TestOnlyAStatedLimitRefuses checks that no mode refuses a node without a limit.
func TestOnlyAStatedLimitRefuses(t *testing.T) {
	c := blanks(2)
	for i := range c {
		c[i].MaxConcurrent, c[i].EngineSlots, c[i].InFlight = 0, int32(4*i), math.MaxInt32
	}
	for m := range Mode(len(modes)) {
		p := Default()
		p.Mode = m
		for r := range uint64(20) {
			if got := pick(p, c, 1, nil, mix(r)); got < 0 {
				t.Errorf("%v refused", m)
			}
		}
	}
}

func TestLoadAwareModesWithoutLimits(t *testing.T) {
	c := blanks(3)
	for i := range c {
		c[i].MaxConcurrent, c[i].InFlight = 0, int32(40-10*i)
	}
	least := &Policy{Mode: LeastLoaded}
	for r := range uint64(50) {
		if got := pick(least, c, 0, nil, mix(r)); got != 2 {
			t.Fatalf("least_loaded picked %d", got)
		}
	}
	c[2].EngineSlots = 20 // full with 20 slots; the other nodes count with 20 slots too and are fuller still
	if got := pick(least, c, 0, nil, 1); got != 2 {
		t.Errorf("least_loaded picked %d", got)
	}
	c[0].EngineSlots = 400
	if got := pick(least, c, 0, nil, 1); got != 0 {
		t.Errorf("least_loaded picked %d, not the one with 40 of 400", got)
	}
}

// TestPendingByHand checks overlap - pending·min(waiting/max(prompt, 64), 4), also below 0.
func TestPendingByHand(t *testing.T) {
	for _, c := range []struct {
		waiting      int64 // blocks
		promptBlocks int
		want         float64
	}{
		{0, 100, 0}, {-5, 100, 0}, {50, 100, 0.5}, {100, 100, 1}, {400, 100, 4}, {4000, 100, 4},
		{32, 0, 0.5}, {32, 10, 0.5}, {128, 64, 2},
	} {
		cand := Candidate{PrefillTokens: block.Tokens * c.waiting}
		near(t, "waiting", waiting(&cand, c.promptBlocks), c.want)
	}
	p := Default()
	p.Score.Weights = Weights{KV: 1, Pending: 0.5}
	cands := blanks(3)
	cands[0].Matched, cands[0].PrefillTokens = 100, 250*block.Tokens // 1 - 1.25
	cands[1].PrefillTokens = 10*block.Tokens + 15                    // -0.05
	cands[2].PrefillTokens = 90 * block.Tokens                       // -0.45
	out := make([]Terms, 3)
	pick, _ := explain(p, cands, 100, nil, 0, out)
	near(t, "total", out[0].Total, -0.25)
	near(t, "overlap", out[0].Overlap, 1)
	near(t, "waiting", out[0].Waiting, 2.5)
	if pick != 1 {
		t.Errorf("picked %d, not the one that nobody waits for", pick)
	}
	p.Score.Weights.Pending = 0 // without the pending term
	if pick, _ = explain(p, cands, 100, nil, 0, out); pick != 0 || out[0].Total != 1 {
		t.Errorf("picked %d at %v without the weight", pick, out[0].Total)
	}
}

// TestComingBlocksCountAsMatched checks that a prompt being computed for another request counts as
// matched.
func TestComingBlocksCountAsMatched(t *testing.T) {
	c := blanks(2)
	c[0].Coming, c[1].Matched = 80, 70
	out := make([]Terms, 2)
	if pick, _ := explain(Default(), c, 100, nil, 0, out); pick != 0 {
		t.Errorf("picked %d", pick)
	}
	near(t, "overlap", out[0].Overlap, 0.8)
	c[1].Coming = 20
	explain(Default(), c, 100, nil, 0, out)
	near(t, "overlap of what is held", out[1].Overlap, 0.7)
}

// TestAFullPrefixYieldsToLoad checks that the holder of a whole prompt is not picked once its
// waiting prefill and its requests, compared with the fleet's, outweigh the prompt.
func TestAFullPrefixYieldsToLoad(t *testing.T) {
	c := blanks(4)
	for i := range c {
		c[i].MaxConcurrent, c[i].EngineSlots = 256, 0
	}
	c[0].Matched, c[0].InFlight = 100, 60
	if got := pick(Default(), c, 100, nil, 0); got != 0 {
		t.Errorf("picked %d, not the holder without waiting prefill", got)
	}
	c[0].PrefillTokens = 400 * block.Tokens
	if got := pick(Default(), c, 100, nil, 0); got == 0 {
		t.Error("picked the holder, where four prompts of this size wait")
	}
}
