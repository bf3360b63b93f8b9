package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/cognitora/dataplane/router/predict"
)

// warmth is a random node, and a random pick in which its cost is computed.
type warmth struct {
	x  expecting
	c  Candidate
	at Timing
}

func randomWarmth(rng *rand.Rand) warmth {
	p := Default()
	p.Score.Tiers.Host, p.Score.Tiers.Disk = rng.Float64(), 0
	p.Score.Tiers.Disk = p.Score.Tiers.Host * rng.Float64()
	blocks := 1 + rng.IntN(2000)
	s := Situation{Blocks: blocks, Tokens: int64(blocks*16 + rng.IntN(16)), Output: rng.Float64() * 500}
	if rng.IntN(3) == 0 {
		s.Sharers, s.Shared = rng.IntN(20), rng.IntN(blocks+1)
	}
	if rng.IntN(3) == 0 {
		s.Overrides.Targets.First = rng.Float64()
	}
	w := warmth{x: (*predicted)(p).expecting(&s), at: Timing{Speed: predict.Untaught()}}
	w.at.PrefillFactor, w.at.Decoding, w.at.Wait = 0.1+3*rng.Float64(), float64(rng.IntN(40)), rng.Float64()
	if rng.IntN(4) == 0 {
		w.at.Prompts, w.at.Lately = 5*rng.Float64(), 10
	}
	at := [4]int32{}
	for i := range at {
		at[i] = rng.Int32N(int32(blocks) + 1)
		if i > 0 {
			at[i] = max(at[i], at[i-1])
		}
	}
	w.c = Candidate{Matched: at[0], Host: at[1], Disk: at[2], SharedCache: at[3]}
	w.at.Fetch = rng.Float64() * rng.Float64() * 0.01
	return w
}

func (w *warmth) cost() (total float64, t ExpectedTerms) {
	w.x.expect(&w.c, &w.at, &t)
	return t.Total, t
}

// TestFetchedBlocks checks in random picks that blocks on other hosts make a node look better only
// if the transfer is faster than computing, that they never make it look worse, and that a block is
// never worth less where it is nearer.
func TestFetchedBlocks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	fetched := 0
	for i := range 20_000 {
		w := randomWarmth(rng)
		with, terms := w.cost()
		if terms.Fetch > 0 {
			fetched++
		}
		without, slow, unknown := w, w, w
		without.c.SharedCache = 0
		without.at.Fetch = 0
		none, bare := without.cost()
		above := func(a, b float64) bool { return a > b*(1+1e-9)+1e-9 }
		if above(with, none) {
			t.Fatalf("%d: %g with blocks elsewhere and %g without: %+v", i, with, none, w)
		}
		if saved := bare.Prefill - terms.Prefill; terms.Fetch > 0 && terms.Fetch >= saved {
			t.Fatalf("%d: a transfer of %g s saves %g s", i, terms.Fetch, saved)
		}
		if slow.at.Fetch = 1; w.c.SharedCache > w.c.Host { // a second for a block
			if c, terms := slow.cost(); c != none || terms != bare {
				t.Fatalf("%d: a slow network changes %+v to %+v", i, bare, terms)
			}
		}
		unknown.at.Fetch = 0
		if c, _ := unknown.cost(); c != none {
			t.Fatalf("%d: an unknown speed changes %g to %g", i, none, c)
		}
		for name, nearer := range map[string]func(c *Candidate){
			"disk":   func(c *Candidate) { c.Disk = c.SharedCache },
			"host":   func(c *Candidate) { c.Host = c.SharedCache },
			"device": func(c *Candidate) { c.Matched = c.SharedCache },
		} {
			near := w
			nearer(&near.c)
			if c, terms := near.cost(); above(c, with) && w.x.spread == 1 { // a burst does not decide on it
				t.Fatalf("%d: %g with the blocks nearer (%s), and %g: %+v, %+v", i, c, name, with, terms, w)
			}
		}
	}
	if fetched < 2000 {
		t.Errorf("only %d picks fetched blocks", fetched)
	}
}

// TestFetchTime checks the parts of a cost with fetched blocks.
func TestFetchTime(t *testing.T) {
	w := warmth{at: Timing{Speed: predict.Untaught(), Decoding: 2, Fetch: 0.0001}}
	p := Default()
	p.Score.Tiers.Host = 1
	w.x = (*predicted)(p).expecting(&Situation{Blocks: 100, Tokens: 1600})
	w.c = Candidate{Matched: 10, Host: 20, SharedCache: 80}
	_, terms := w.cost()
	near := func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 }
	rest := w.at.Prefill(predict.Prompt(1600, 1280))
	if !near(terms.Fetch, 0.006) || !near(terms.Prefill, rest) || !near(terms.Stalls, 2*(rest+0.006)) {
		t.Errorf("%+v, and computing takes %g s", terms, rest)
	}
	warm := p.Score.Tiers.Warm(&w.c, &w.at, 1600)
	if warm.Held != 1280 || !near(warm.Fetch, 0.006) {
		t.Errorf("%+v", warm)
	}
}
