package policy

import (
	"strings"
	"testing"
)

// TestSessionsDecideAmongEqualNodes checks every mode that compares nodes. Among equal nodes the
// session's wins, and Explain says so. Without a session the draw is fair.
func TestSessionsDecideAmongEqualNodes(t *testing.T) {
	for mode, why := range map[Mode]string{
		Score: "its session is there", Cost: "its session is there", LeastLoaded: sessionDecided,
		DeviceAware: sessionDecided, Direct: sessionDecided,
	} {
		p, e := Default(), Explanation{}
		p.Mode = mode
		s := &Situation{Candidates: blanks(4), Blocks: 100, Tokens: 1600, Pinned: mode == Direct}
		others := 0
		for i := range uint64(100) {
			s.Random, s.Home = mix(i), 3
			if at := p.Explain(s, &e); at != 2 || p.Pick(s) != 2 || !strings.Contains(e.Why, why) {
				t.Fatalf("%v: %d, %s", mode, at, e.Why)
			}
			s.Home = 0
			if at := p.Explain(s, &e); p.Pick(s) != at || strings.Contains(e.Why, "session") {
				t.Fatalf("%v without a session: %s", mode, e.Why)
			} else if at != 2 {
				others++
			}
		}
		if others < 50 || others > 95 {
			t.Errorf("%v without a session: %d of 100 elsewhere", mode, others)
		}
	}
}

// TestSessionsYieldToLoad checks that a session's node must be among the best, and that a session
// claims no choice that the load has made.
func TestSessionsYieldToLoad(t *testing.T) {
	for _, mode := range []Mode{LeastLoaded, DeviceAware, Direct, PowerOfTwo} {
		p, e := Default(), Explanation{}
		p.Mode = mode
		s := &Situation{Candidates: blanks(2), Home: 1, Pinned: mode == Direct}
		s.Candidates[0].InFlight = 1
		if at := p.Explain(s, &e); at != 1 || p.Pick(s) != 1 || strings.Contains(e.Why, "session") {
			t.Errorf("%v: at a busier node: %d, %s", mode, at, e.Why)
		}
		s.Home = 2
		if at := p.Explain(s, &e); at != 1 || strings.Contains(e.Why, "session") {
			t.Errorf("%v: at the best node: %d, %s", mode, at, e.Why)
		}
	}
	p, s := Default(), &Situation{Candidates: blanks(2), Home: 1}
	p.Mode = DeviceAware
	if s.Candidates[0].CPU = true; p.Pick(s) != 1 {
		t.Error("device_aware leaves its group for a session")
	}
}

// TestSessionsInPowerOfTwo checks that a session's node wins if it is drawn and equal, and is drawn
// as often as others.
func TestSessionsInPowerOfTwo(t *testing.T) {
	p, e := &Policy{Mode: PowerOfTwo}, Explanation{}
	home, said := 0, 0
	const picks = 4000
	for i := range uint64(picks) {
		s := &Situation{Candidates: blanks(4), Home: 2, Random: mix(i)}
		at := p.Explain(s, &e)
		if at != p.Pick(s) {
			t.Fatal("Explain and Pick differ")
		}
		if at == 1 {
			home++
		}
		if strings.HasSuffix(e.Why, sessionDecided) {
			said++
		}
	}
	if home < picks*45/100 || home > picks*55/100 || said != home { // one of two draws among four
		t.Errorf("%d of %d at the session's node, %d explained", home, picks, said)
	}
}

// TestSessionsInCost checks the margin of mode cost: a tenth of the prompt's blocks.
func TestSessionsInCost(t *testing.T) {
	const within = "its session is there, and its cost 210.0 is within 10.0, a tenth of the prompt's blocks, of the " +
		"lowest cost 200.0"
	for _, c := range []struct {
		active      float64 // blocks at the session's node
		temperature float64
		full        bool
		want        int
		why         string
	}{
		{active: 10, want: 0, why: within},
		{active: 11, want: 1, why: "lowest cost 200.0 of 2 candidates"},
		{active: 10, temperature: 1e6, want: 0, why: within},
		{active: 10, full: true, want: 1, why: "the only candidate with room"},
	} {
		p, e := Default(), Explanation{}
		p.Mode, p.Cost.Temperature = Cost, c.temperature
		for i := range uint64(20) {
			s := &Situation{Candidates: blanks(2), Blocks: 100, Tokens: 1600, Home: 1, Random: mix(i)}
			if s.Candidates[0].ActiveBlocks = c.active; c.full {
				s.Candidates[0].InFlight = s.Candidates[0].MaxConcurrent
			}
			if at := p.Explain(s, &e); at != c.want || p.Pick(s) != at || e.Why != c.why {
				t.Fatalf("%+v: %d, %s", c, at, e.Why)
			}
		}
	}
	p, e := Default(), Explanation{}
	p.Mode = Cost
	s := &Situation{Candidates: blanks(2), Blocks: 100, Tokens: 1600, Home: 1}
	if s.Candidates[1].ActiveBlocks = 1; p.Explain(s, &e) != 0 || strings.Contains(e.Why, "session") {
		t.Errorf("at the only node with the lowest cost: %s", e.Why)
	}
}
