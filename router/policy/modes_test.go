package policy

import (
	"math"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/predict"
)

// TestModesDiffer gives every mode the same fleet. No two modes pick the same nodes.
func TestModesDiffer(t *testing.T) {
	cands := []Candidate{
		{IDHash: 1, Matched: 100, PrefillTokens: 3_200, InFlight: 20, MaxConcurrent: 100}, // all of the prompt
		{IDHash: 2, Matched: 50, InFlight: 10, MaxConcurrent: 40},                         // the lowest cost
		{IDHash: 3, MaxConcurrent: 10},                                                    // idle
		{IDHash: 4, InFlight: 1, MaxConcurrent: 20, CPU: true},                            // less than 40/(8*4) requests
		{IDHash: 5, InFlight: 10, MaxConcurrent: 20},                                      // no prefill waits there
	}
	times := make([]Timing, len(cands))
	for i := range times {
		times[i] = Timing{Speed: predict.Untaught(), Wait: 10}
	}
	times[4].Wait = 0
	shares := map[Mode][5]float64{
		Predicted: {4: 1}, Score: {0: 1}, Cost: {1: 1}, LeastLoaded: {2: 1}, DeviceAware: {3: 1},
		RoundRobin: {0.2, 0.2, 0.2, 0.2, 0.2}, Random: {0.2, 0.2, 0.2, 0.2, 0.2},
		PowerOfTwo: {0.2, 0.1, 0.4, 0.3, 0}, Direct: {},
	}
	if len(shares) != len(ModeNames()) {
		t.Errorf("%d modes of %q", len(shares), ModeNames())
	}
	for mode, want := range shares {
		p, counts := Default(), [5]float64{}
		p.Mode = mode
		const picks = 4000
		for i := range uint64(picks) {
			s := &Situation{Candidates: cands, Times: times, Blocks: 100, Tokens: 1600, Random: mix(i)}
			if mode.Counts() {
				s.Random = i
			}
			switch at := p.Pick(s); {
			case at >= 0:
				counts[at]++
			case mode != Direct:
				t.Fatalf("%v picked none", mode)
			}
		}
		for i := range want {
			if math.Abs(counts[i]/picks-want[i]) > 0.04 {
				t.Errorf("%v: %v of %d picks, want shares of %v", mode, counts, picks, want)
			}
		}
	}
	pick := func(m Mode, random uint64) int {
		return (&Policy{Mode: m}).Pick(&Situation{Candidates: cands, Random: random})
	}
	if pick(RoundRobin, 1<<63) != 3 || pick(Random, 1<<63) != 2 {
		t.Error("round_robin takes the turn by its number, random by its place among all numbers")
	}
}

func TestDirectTakesOnlyThePinnedNode(t *testing.T) {
	p, e := &Policy{Mode: Direct}, Explanation{}
	s := &Situation{Candidates: blanks(1)}
	if at := p.Explain(s, &e); at != -1 || p.Pick(s) != -1 ||
		!strings.Contains(e.Why, "mode direct only takes the node") {
		t.Errorf("without a pin: %d, %s", at, e.Why)
	}
	s.Pinned = true
	if at := p.Explain(s, &e); at != 0 || p.Pick(s) != 0 ||
		e.Why != "the node that the request names, 0 requests on 10 slots" {
		t.Errorf("with a pin: %d, %s", at, e.Why)
	}
	s.Candidates = blanks(2) // the node's ranks
	s.Candidates[0].InFlight = 1
	if at := p.Pick(s); at != 1 {
		t.Errorf("with a pin to a node with ranks: %d", at)
	}
	s.Candidates = s.Candidates[:1]
	s.Candidates[0].InFlight = 10
	if at := p.Explain(s, &e); at != -1 || e.Why != "the only candidate has no room" {
		t.Errorf("with a pin to a full node: %d, %s", at, e.Why)
	}
}

// TestAPinIsTheReason checks that the reason for a pinned node is the pin, in every mode but
// direct, and that a rank of the node has the mode's reason too.
func TestAPinIsTheReason(t *testing.T) {
	for m, name := range ModeNames() {
		p, e := Default(), Explanation{}
		p.Mode = Mode(m)
		p.Explain(&Situation{Candidates: blanks(1), Pinned: true}, &e)
		if p.Mode != Direct && e.Why != "the request is pinned to this node" {
			t.Errorf("%s: %s", name, e.Why)
		}
		p.Explain(&Situation{Candidates: blanks(2), Pinned: true}, &e)
		if p.Mode != Direct && !strings.HasPrefix(e.Why, "the request is pinned to this node; its rank: ") {
			t.Errorf("%s, ranks: %s", name, e.Why)
		}
		p.Explain(&Situation{Candidates: []Candidate{{}, {MaxConcurrent: 1, InFlight: 1}}}, &e)
		if p.Mode != Direct && e.Why != "the only candidate with room" {
			t.Errorf("%s, one with room: %s", name, e.Why)
		}
	}
}

func TestDeviceAwareByHand(t *testing.T) {
	type node struct {
		cpu         bool
		busy, limit int32
	}
	const cpu, gpu = true, false
	for name, c := range map[string]struct {
		nodes []node
		ratio float64
		want  int
	}{
		"idle":                      {[]node{{cpu, 0, 0}, {gpu, 0, 0}}, 8, 1},
		"behind its share":          {[]node{{cpu, 0, 0}, {gpu, 1, 0}}, 8, 0},
		"at its share":              {[]node{{cpu, 1, 0}, {gpu, 8, 0}}, 8, 1},
		"just behind":               {[]node{{cpu, 1, 0}, {gpu, 9, 0}}, 8, 0},
		"another ratio":             {[]node{{cpu, 1, 0}, {gpu, 9, 0}}, 9, 1},
		"two accelerators":          {[]node{{cpu, 1, 0}, {gpu, 8, 0}, {gpu, 7, 0}}, 8, 2},
		"two CPUs":                  {[]node{{cpu, 1, 0}, {gpu, 8, 0}, {cpu, 0, 0}}, 8, 2},
		"least loaded of the CPUs":  {[]node{{cpu, 3, 0}, {cpu, 2, 0}, {gpu, 90, 0}}, 8, 1},
		"only CPUs":                 {[]node{{cpu, 3, 0}, {cpu, 2, 0}}, 8, 1},
		"only accelerators":         {[]node{{gpu, 3, 0}, {gpu, 2, 0}}, 8, 1},
		"the CPUs are full":         {[]node{{cpu, 2, 2}, {gpu, 90, 0}}, 8, 1},
		"the accelerators are":      {[]node{{cpu, 2, 0}, {gpu, 4, 4}}, 8, 0},
		"a full one does not count": {[]node{{cpu, 1, 0}, {gpu, 8, 8}, {gpu, 1, 0}}, 8, 2},
		"all full":                  {[]node{{cpu, 2, 2}, {gpu, 4, 4}}, 8, -1},
		"by slots within":           {[]node{{gpu, 3, 100}, {gpu, 2, 4}}, 8, 0},
	} {
		p, e := &Policy{Mode: DeviceAware, DeviceAware: DeviceAwareSettings{Ratio: c.ratio}}, Explanation{}
		s := &Situation{}
		for _, n := range c.nodes {
			s.Candidates = append(s.Candidates, Candidate{CPU: n.cpu, InFlight: n.busy, MaxConcurrent: n.limit})
		}
		if at := p.Explain(s, &e); at != c.want || p.Pick(s) != at {
			t.Errorf("%s: picked %d, want %d: %s", name, at, c.want, e.Why)
		}
		if name == "least loaded of the CPUs" && e.Why != "least loaded of 2 CPUs, 2 requests; 5 requests on 2 CPUs, 90 on 1 "+
			"accelerators, ratio 8" {
			t.Error(e.Why)
		}
	}
}
