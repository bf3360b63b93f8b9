package policy

import "testing"

// TestExpertsRaiseTheCredit: the share of hosted experts raises the credit for blocks in the
// engine's own memory, and for no other blocks, up to the prompt's 100 blocks.
func TestExpertsRaiseTheCredit(t *testing.T) {
	for _, c := range []costCase{
		{name: "none", node: Candidate{Matched: 20}, want: 80 + 100},
		{name: "all", node: Candidate{Matched: 20, Experts: 1}, want: 60 + 100},
		{name: "a quarter", node: Candidate{Matched: 20, Experts: 0.25}, want: 75 + 100},
		{name: "coming", node: Candidate{Coming: 20, Experts: 1}, want: 60 + 100},
		{name: "nothing cached", node: Candidate{Experts: 1}, want: 100 + 100},
		{name: "other tiers", node: Candidate{Host: 40, Disk: 80, Experts: 1}, want: 100 - 30 - 10 + 100},
		{name: "all tiers", node: Candidate{Matched: 20, Host: 40, Experts: 0.5}, want: 100 - 30 - 15 + 100},
		{name: "up to the prompt", node: Candidate{Matched: 60, Experts: 1, PrefillTokens: 320}, want: 20 + 100},
		{name: "up to the prompt, with host", node: Candidate{Matched: 40, Host: 100, Experts: 1, PrefillTokens: 320},
			want: 20 + 100},
		{name: "beyond the prompt already", node: Candidate{Matched: 60, Experts: 1, PrefillTokens: 800},
			want: 30 + 100, edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCredit = 2 }},
		{name: "by the credit", node: Candidate{Matched: 20, Experts: 1}, want: 100 - 10 - 10 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCredit = 0.5 }},
		{name: "by the decay", node: Candidate{Matched: 21, PrefillTokens: 320, Experts: 1},
			other: &Candidate{PrefillTokens: 160}, want: 120 - 2*21/1.05 + 100,
			edit: func(c *CostSettings, _ *Situation) { c.OverlapScoreCreditDecay = 0.5 }},
		{name: "without prefill", node: Candidate{Matched: 20, Experts: 1}, want: 100 - 40,
			edit: func(c *CostSettings, _ *Situation) { c.TrackPrefillTokens = false }},
		{name: "of large blocks", node: Candidate{Matched: 21, Experts: 1}, want: 25 - 2*5 + 25,
			edit: func(c *CostSettings, _ *Situation) { c.BlockTokens = 64 }},
	} {
		c.check(t)
	}
	p, e := &Policy{Mode: Cost, Cost: Default().Cost}, Explanation{}
	p.Explain(&Situation{Candidates: []Candidate{{Matched: 20, Experts: 0.25}}, Blocks: 100, Tokens: 1600}, &e)
	if c := e.Terms[0].Cost; c.Experts != 5 || c.Credit != 25 || c.Cached != 20 {
		t.Errorf("%+v", c)
	}
}

func TestExpertsRaiseTheOverlap(t *testing.T) {
	for _, c := range []struct {
		node Candidate
		want float64
	}{
		{Candidate{Matched: 4}, 0.4}, {Candidate{Matched: 4, Experts: 1}, 0.8}, {Candidate{Matched: 4, Experts: 0.5}, 0.6},
		{Candidate{Coming: 4, Experts: 1}, 0.8}, {Candidate{Matched: 8, Experts: 1}, 1}, {Candidate{Experts: 1}, 0},
		{Candidate{Host: 4, Disk: 8, Experts: 1}, 0.4}, {Candidate{Matched: 2, Host: 4, Experts: 1}, 0.2 + 0.15 + 0.2},
	} {
		near(t, "overlap", Default().Score.overlap(&c.node, 10), c.want)
	}
	tiers := ScoreSettings{Tiers: Tiers{Device: 0.5}}
	near(t, "overlap of half the worth", tiers.overlap(&Candidate{Matched: 4, Experts: 1}, 10), 0.4)
}

// TestExpertsDecide: of two equal nodes the one with more of the experts wins, also against some
// load. Other modes know no overlap.
func TestExpertsDecide(t *testing.T) {
	for _, mode := range []Mode{Score, Cost} {
		p := Default()
		p.Mode = mode
		for r := range uint64(20) {
			s := &Situation{Blocks: 100, Tokens: 1600, Random: mix(r), Candidates: []Candidate{
				{IDHash: 1, Matched: 40, Experts: 0.5}, {IDHash: 2, Matched: 40, InFlight: 1, Experts: 1},
				{IDHash: 3, Matched: 40},
			}}
			if at := p.Pick(s); at != 1 {
				t.Fatalf("%v picks %d", mode, at)
			}
		}
	}
}
