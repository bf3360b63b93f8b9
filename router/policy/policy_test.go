package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/kv/block"
)

type key uint64

func (k key) RendezvousKey() uint64 { return uint64(k) }

type countingKey struct {
	asked int
	value uint64
}

func (k *countingKey) RendezvousKey() uint64 { k.asked++; return k.value }

// situation is a pick for a prompt of the given blocks. Mode direct gets its pin.
func situation(p *Policy, cands []Candidate, blocks int, key Key, r uint64) *Situation {
	return &Situation{Candidates: cands, Blocks: blocks, Tokens: int64(blocks) * block.Tokens, Key: key, Random: r,
		Pinned: p.Mode == Direct}
}

// pick picks for a prompt of the given blocks.
func pick(p *Policy, cands []Candidate, blocks int, key Key, r uint64) int {
	return p.Pick(situation(p, cands, blocks, key, r))
}

// explain explains what pick does. explain fills in the terms as far as out is long.
func explain(p *Policy, cands []Candidate, blocks int, key Key, r uint64, out []Terms) (at int, why string) {
	var e Explanation
	at = p.Explain(situation(p, cands, blocks, key, r), &e)
	copy(out, e.Terms)
	return at, e.Why
}

// blank is a node whose slots alone are known.
func blank(id uint64) Candidate {
	return Candidate{IDHash: mix(id), MaxConcurrent: 10, VRAM: Unknown(), Throughput: Unknown()}
}

// told is a load with a known GPU utilization, 0 to 1, and known watts.
func told(sm, watts float64) *load.Load {
	l := &load.Load{}
	l.SMPct, l.Watts = load.Known(100*sm), load.Known(watts)
	return l
}

func blanks(n int) []Candidate {
	out := make([]Candidate, n)
	for i := range out {
		out[i] = blank(uint64(i + 1))
	}
	return out
}

func near(t *testing.T, name string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-6 {
		t.Errorf("%s = %v, want %v", name, got, want)
	}
}

func TestTermsByHand(t *testing.T) {
	a := Candidate{IDHash: 1, Matched: 3, InFlight: 2, MaxConcurrent: 10, Load: told(0.1, 300), VRAM: 80, Throughput: 2}
	b := Candidate{IDHash: 2, Matched: 12, InFlight: 1, Others: 1, MaxConcurrent: 4, Load: told(0.9, 600),
		VRAM: 40, Throughput: 8}
	var out [2]Terms
	pick, why := explain(Default(), []Candidate{a, b}, 12, nil, 0, out[:])
	near(t, "a.overlap", out[0].Overlap, 0.25)
	near(t, "a.load", out[0].Load, 0.8)
	near(t, "a.power", out[0].Power, 0.5)
	near(t, "a.capacity", out[0].Capacity, (1+0.25+1)/3)
	near(t, "a.total", out[0].Total, 0.55*0.25+0.25*0.8+0.10*0.5+0.10*0.75)
	near(t, "b.overlap", out[1].Overlap, 1)
	near(t, "b.load", out[1].Load, 0.1) // sm is above the in-flight share
	near(t, "b.power", out[1].Power, 0)
	near(t, "b.capacity", out[1].Capacity, (0.5+1+0.25)/3)
	if pick != 1 || why != "highest score 0.6333 of 2 candidates" {
		t.Errorf("pick %d, %q", pick, why)
	}
}

func TestUnknownTelemetryIsTheMean(t *testing.T) {
	c := blanks(3)
	c[0].Load, c[1].Load = told(0.2, 100), told(0.6, 400)
	c[0].VRAM, c[1].VRAM = 20, 80
	c[0].Throughput, c[1].Throughput = 1, 2
	c[2].Load, c[2].VRAM = told(math.Inf(1), -1), -1 // a negative value counts as unknown
	out := make([]Terms, 3)
	explain(Default(), c, 0, nil, 0, out)
	near(t, "load", out[2].Load, 1-0.4)
	near(t, "power", out[2].Power, 1-250.0/400)
	near(t, "capacity", out[2].Capacity, (50.0/80+1.5/2+1)/3)

	explain(Default(), blanks(2), 0, nil, 0, out)
	near(t, "power nobody knows", out[0].Power, 0)
	near(t, "capacity nobody knows", out[0].Capacity, 1.0/3)
	near(t, "load nobody knows", out[0].Load, 1)
}

func TestOutOfRangeInputsStayInRange(t *testing.T) {
	c := Candidate{Matched: 50, InFlight: -3, MaxConcurrent: 0, Load: told(7, 1), VRAM: 1, Throughput: 1}
	out := make([]Terms, 1)
	if pick, _ := explain(Default(), []Candidate{c}, 10, nil, 0, out); pick != 0 {
		t.Fatal("not picked")
	}
	near(t, "overlap", out[0].Overlap, 1)
	near(t, "load", out[0].Load, 0)
}

func TestFullNodesAreNoCandidates(t *testing.T) {
	c := blanks(4)
	c[0].Matched, c[0].InFlight = 100, 10
	c[1].Matched, c[1].InFlight, c[1].Others = 100, 4, 6
	c[3].Matched, c[3].MaxConcurrent = 100, -1
	for m := range Mode(len(modes)) {
		p := Default()
		p.Mode = m
		for r := range uint64(50) {
			if got := pick(p, c, 100, key(r), mix(r)); got != 2 {
				t.Fatalf("%v picked %d", m, got)
			}
		}
		if got := pick(p, c[:2], 100, key(1), 1); got != -1 {
			t.Errorf("%v picked %d of full nodes", m, got)
		}
		if got := pick(p, nil, 100, nil, 1); got != -1 {
			t.Errorf("%v picked %d of none", m, got)
		}
	}
	out := make([]Terms, 4)
	explain(Default(), c, 100, nil, 0, out)
	if out[3].Eligible || out[3].Reason != "full: the node's other ranks have all of its slots" {
		t.Errorf("%+v", out[3])
	}
	if out[1].Eligible || out[1].Reason != "full: 4 in flight and 6 of others of 10 slots" || !out[2].Eligible ||
		out[2].Reason != "" {
		t.Errorf("%+v", out)
	}
}

func TestKeyIsAskedOnlyOnATie(t *testing.T) {
	k := &countingKey{value: 7}
	c := blanks(4)
	c[2].Matched = 10
	if got := pick(Default(), c, 10, k, 0); got != 2 || k.asked != 0 {
		t.Errorf("picked %d, asked %d times", got, k.asked)
	}
	c[2].Matched = 0
	pick(Default(), c, 10, k, 0)
	if k.asked != 1 {
		t.Errorf("asked %d times on a tie of 4", k.asked)
	}
	c[0].InFlight, c[1].InFlight, c[2].InFlight = 10, 10, 10
	pick(Default(), c, 10, k, 0)
	if k.asked != 1 {
		t.Error("asked with one candidate left")
	}
}

func TestRendezvous(t *testing.T) {
	p, c := Default(), blanks(8)
	var counts [8]int
	for k := range uint64(8000) {
		first := pick(p, c, 10, key(mix(k)|1), k)
		if again := pick(p, c, 10, key(mix(k)|1), ^k); again != first {
			t.Fatalf("key %d went to %d and %d", k, first, again)
		}
		counts[first]++
		// Without the winner the others must keep their order. Without a loser the winner must
		// stay.
		loser := (first + 1) % 8
		without := append(append([]Candidate{}, c[:loser]...), c[loser+1:]...)
		if c[first].IDHash != without[pick(p, without, 10, key(mix(k)|1), k)].IDHash {
			t.Fatalf("key %d moved because another node left", k)
		}
	}
	for i, n := range counts {
		if n < 850 || n > 1150 {
			t.Errorf("node %d got %d of 8000", i, n)
		}
	}
}

// TestEveryCandidateIsLookedAt picks in a large fleet: a single best node, one of two tied nodes,
// and the tied one that has the session.
func TestEveryCandidateIsLookedAt(t *testing.T) {
	for _, m := range []Mode{Score, Cost} {
		p, c := Default(), blanks(600)
		p.Mode = m
		c[500].Matched = 10
		if got := pick(p, c, 10, key(1), 1); got != 500 {
			t.Errorf("%v picked %d, not the holder", m, got)
		}
		c[7].Matched = 10
		seen := map[int]bool{}
		for r := range uint64(50) {
			seen[pick(p, c, 10, key(mix(r)), mix(r))] = true
		}
		if len(seen) != 2 || !seen[7] || !seen[500] {
			t.Errorf("%v picked %v, not both holders", m, seen)
		}
		s := situation(p, c, 10, key(1), 1)
		for _, home := range []int{7, 500} {
			if s.Home = home + 1; m == Score && p.Pick(s) != home {
				t.Errorf("%v left the session's node %d", m, home)
			}
		}
	}
}

// TestCandidatesAreSmall bounds the memory that a pick of a large fleet writes and reads for each
// node.
func TestCandidatesAreSmall(t *testing.T) {
	if size := reflect.TypeFor[Candidate]().Size(); size > 104 {
		t.Errorf("a candidate has %d bytes, want at most 104", size)
	}
}

func TestTieWithoutAKeyIsRandom(t *testing.T) {
	var counts [4]int
	c := blanks(4)
	for i := range c {
		c[i].IDHash = 5 // equal hashes too
	}
	for r := range uint64(4000) {
		counts[pick(Default(), c, 10, key(0), mix(r))]++
	}
	for i, n := range counts {
		if n < 850 || n > 1150 {
			t.Errorf("node %d got %d of 4000", i, n)
		}
	}
}

func TestEpsilonBoundsTheTie(t *testing.T) {
	p, c := Default(), blanks(2)
	p.Score.Weights.KV, p.Score.Weights.Load, p.Score.Weights.Power, p.Score.Weights.Capacity = 1, 0, 0, 0
	c[0].Matched, c[1].Matched = 1000, 985
	for k := range uint64(100) {
		if pick(p, c, 1000, key(k+1), k) != 0 {
			t.Fatal("1.5 % apart is no tie")
		}
	}
	c[1].Matched = 995
	seen := [2]bool{}
	for k := range uint64(100) {
		seen[pick(p, c, 1000, key(k+1), k)] = true
	}
	if seen != [2]bool{true, true} {
		t.Error("0.5 % apart is a tie")
	}
}

func TestSimpleModesSpread(t *testing.T) {
	c := blanks(5)
	c[3].InFlight = 10
	for _, m := range []Mode{Random, RoundRobin, PowerOfTwo, LeastLoaded} {
		p := &Policy{Mode: m}
		var counts [5]int
		for i := range uint64(4000) {
			r := mix(i)
			if m.Counts() {
				r = i
			}
			counts[pick(p, c, 0, nil, r)]++
		}
		for i, n := range counts {
			if want := map[bool]int{true: 0, false: 1000}[i == 3]; n < want*85/100 || n > want*115/100 {
				t.Errorf("%v: node %d got %d of 4000", m, i, n)
			}
		}
	}
}

func TestRoundRobinIsFairUnderConcurrency(t *testing.T) {
	p, c := &Policy{Mode: RoundRobin}, blanks(7)
	var counter atomic.Uint64
	var counts [7]atomic.Int64
	var wg sync.WaitGroup
	for range 7 {
		wg.Go(func() {
			for range 1000 {
				counts[pick(p, c, 0, nil, counter.Add(1))].Add(1)
			}
		})
	}
	wg.Wait()
	for i := range counts {
		if n := counts[i].Load(); n != 1000 {
			t.Errorf("node %d got %d, want exactly 1000", i, n)
		}
	}
}

func TestLoadAwareModes(t *testing.T) {
	c := blanks(3)
	c[0].InFlight, c[1].InFlight, c[2].InFlight = 5, 2, 4
	c[1].Others, c[2].MaxConcurrent = 1, 40 // 0.5, 0.3, 0.1
	least, two := &Policy{Mode: LeastLoaded}, &Policy{Mode: PowerOfTwo}
	var counts [3]int
	for r := range uint64(3000) {
		if got := pick(least, c, 0, nil, mix(r)); got != 2 {
			t.Fatalf("least_loaded picked %d", got)
		}
		counts[pick(two, c, 0, nil, mix(r))]++
	}
	if counts[0] != 0 || counts[1] < 900 || counts[2] < 1850 {
		t.Errorf("power_of_two: %v, want 0, 1/3, 2/3", counts)
	}
}

// TestExplainAgreesWithPick compares Explain with Pick on random fleets.
func TestExplainAgreesWithPick(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	out := make([]Terms, 16)
	for range 2000 {
		c := make([]Candidate, rng.IntN(16))
		for i := range c {
			c[i] = randomCandidate(rng)
		}
		p := Default()
		p.Mode, p.Score.Epsilon = Mode(rng.IntN(len(modes))), rng.Float64()*0.1
		p.Score.RunDelayMs, p.Score.RetransmitPct = float64(rng.IntN(3)*500), float64(rng.IntN(3)*2)
		p.Cost.Temperature = float64(rng.IntN(2))
		k, r := key(rng.Uint64N(3)), rng.Uint64()
		want := pick(p, c, 20, k, r)
		got, why := explain(p, c, 20, k, r, out)
		if got != want || why == "" {
			t.Fatalf("explained %d (%s), picked %d", got, why, want)
		}
		for i := range c {
			if out[i].Eligible && p.Mode == Score && out[i].Total > out[want].Total+p.Score.Epsilon+1e-12 {
				t.Fatalf("%v beats the winner %v", out[i], out[want])
			}
			if out[i].Eligible && p.Mode == Cost && p.Cost.Temperature == 0 && out[i].Total < out[want].Total {
				t.Fatalf("%v costs less than the winner %v", out[i], out[want])
			}
			if x := out[i]; min(x.Overlap, x.Waiting, x.Load, x.Power, x.Capacity) < 0 ||
				max(x.Overlap, x.Load, x.Power, x.Capacity) > 1 || x.Waiting > waitingMost {
				t.Fatalf("a term is out of [0,1]: %+v", x)
			}
		}
	}
}

func randomCandidate(rng *rand.Rand) Candidate {
	maybe := func(scale float64) float32 {
		if rng.IntN(4) == 0 {
			return Unknown()
		}
		return float32(rng.Float64() * scale)
	}
	c := Candidate{
		IDHash: rng.Uint64(), Matched: rng.Int32N(25), Coming: rng.Int32N(25),
		InFlight: rng.Int32N(9), Others: rng.Int32N(3), VRAM: maybe(8e10),
		Throughput: maybe(8), Retransmits: maybe(0.1),
		Load: told(float64(maybe(1)), float64(maybe(700))),
	}
	c.Load.EngineWaitPct = load.Known(float64(maybe(200)))
	c.CPU, c.PrefillTokens, c.ActiveBlocks = rng.IntN(3) == 0, rng.Int64N(5000)-200, float64(maybe(500))
	c.SharedActive, c.SharedCache = rng.Int32N(25)-1, rng.Int32N(25)
	if rng.IntN(4) == 0 {
		c.Labels = float64(maybe(2)) - 1
	}
	switch rng.IntN(4) {
	case 0:
		c.EngineSlots = 1 + rng.Int32N(9)
	case 1:
		c.InFlight *= 20 // a node without a limit
	default:
		c.MaxConcurrent = 1 + rng.Int32N(9)
	}
	return c
}

func TestPickAllocatesNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	k := &countingKey{value: 9}
	for _, n := range []int{8, 1000} {
		c := make([]Candidate, n)
		for i := range c {
			c[i] = randomCandidate(rng)
		}
		for m := range Mode(len(modes)) {
			p := Default()
			p.Mode = m
			p.Cost.Temperature, p.Cost.OverlapScoreCreditDecay = 0.5, 0.5
			s := situation(p, c, 20, k, 12345)
			s.Overrides.PrefillLoadScale = Given(2.0)
			if a := testing.AllocsPerRun(100, func() { p.Pick(s) }); a != 0 {
				t.Errorf("%v of %d: %v allocations", m, n, a)
			}
		}
	}
}

func TestThroughput(t *testing.T) {
	for dtype, want := range map[string]float32{"bfloat16": 4, "torch.float16": 4, "FP8_E4M3": 8, "int8": 8,
		"float32": 2, "nvfp4": 16, "awq": 4, "int4": 4, "Q4_K_M": 4, "iq3_xs": 4, "q8_0": 4} {
		if got := Throughput(4, dtype); got != want {
			t.Errorf("%s: %v, want %v", dtype, got, want)
		}
	}
	if known(float64(Throughput(4, "quick"))) || known(float64(Throughput(4, ""))) ||
		known(float64(Throughput(0, "bf16"))) {
		t.Error("an unknown dtype and tp 0 must be unknown")
	}
}

// BenchmarkPick measures the modes that look at every node, for fleets of nodes that differ in
// everything, for equal nodes at work, and for equal idle nodes.
func BenchmarkPick(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	fleets := []struct {
		name string
		node func() Candidate
	}{
		{"mixed", func() Candidate { return randomCandidate(rng) }},
		{"at work", func() Candidate { return working(rng) }},
		{"idle", func() Candidate { return blank(rng.Uint64()) }},
	}
	for _, m := range []Mode{Score, Cost, LeastLoaded, PowerOfTwo} {
		for _, f := range fleets {
			for _, n := range []int{8, 512} {
				b.Run(fmt.Sprintf("%v/%s/%d", m, f.name, n), func(b *testing.B) {
					c := make([]Candidate, n)
					for i := range c {
						c[i] = f.node()
					}
					p := Default()
					p.Mode = m
					s := situation(p, c, 20, &countingKey{value: 9}, 12345)
					b.ReportAllocs()
					for b.Loop() {
						p.Pick(s)
					}
				})
			}
		}
	}
}

// working is one of many equal nodes with telemetry. It has a part of the prompt, and requests.
func working(rng *rand.Rand) Candidate {
	c := blank(rng.Uint64())
	c.MaxConcurrent, c.EngineSlots, c.VRAM, c.Throughput = 0, 256, 8e10, 1
	c.Matched, c.Coming = 10, 10
	c.InFlight, c.Others, c.PrefillTokens, c.ActiveBlocks = rng.Int32N(64), rng.Int32N(8), rng.Int64N(9000), 900
	c.Load = told(rng.Float64(), 300+300*rng.Float64())
	return c
}

// TestApartFromTheOthers checks that CPU waits and retransmissions count only if set, and only for
// the excess over the peers'.
func TestApartFromTheOthers(t *testing.T) {
	u, none := Unknown(), math.NaN()
	for name, c := range map[string]struct {
		delay  []float64
		resent []float32
		want   []float64 // util
	}{
		"all alike, saturated":       {[]float64{0.9, 1, 1.1, 0.8}, nil, []float64{0, 0, 0, 0}},
		"one waits":                  {[]float64{0.9, 0.1, 0.1, 0.1}, nil, []float64{0.7, 0, 0, 0}},
		"two of five wait":           {[]float64{1, 1, 0, 0, 0}, nil, []float64{0.5, 0.5, 0, 0, 0}},
		"one waits with many":        {[]float64{9, 0, 0}, nil, []float64{1, 0, 0}},
		"two nodes":                  {[]float64{0.6, 0.1}, nil, []float64{0.4, 0}},
		"only one is known":          {[]float64{0.9, none, none}, nil, []float64{0, 0, 0}},
		"unknown is nothing special": {[]float64{none, 0.6, 0.1}, nil, []float64{0, 0.4, 0}},
		"one loses":                  {nil, []float32{0.02, 0, 0}, []float64{0.5, 0, 0}},
		"all lose":                   {nil, []float32{0.04, 0.03, 0.05}, []float64{0, 0, 0}},
		"the worse counts":           {[]float64{0.2, 0, 0}, []float32{0.03, 0, 0}, []float64{0.75, 0, 0}},
	} {
		cands := blanks(len(c.want))
		for i := range cands {
			cands[i].Retransmits = u
			if c.delay != nil {
				cands[i].Load = &load.Load{Kernel: load.Kernel{EngineWaitPct: load.Known(100 * c.delay[i])}}
			}
			if c.resent != nil {
				cands[i].Retransmits = c.resent[i]
			}
		}
		p := Default()
		for i, got := range util(p, cands) {
			if got != 0 {
				t.Errorf("%s: util %v of node %d by default", name, got, i)
			}
		}
		p.Score.RunDelayMs, p.Score.RetransmitPct = 1000, 4
		for i, got := range util(p, cands) {
			if math.Abs(got-c.want[i]) > 1e-6 {
				t.Errorf("%s: util %v of node %d, want %v", name, got, i, c.want[i])
			}
		}
	}
}

// TestANodeThatMustLoadTheAdapterScoresLess checks the adapter's term.
func TestANodeThatMustLoadTheAdapterScoresLess(t *testing.T) {
	c := blanks(2)
	c[0].Loads, c[0].Matched = true, 15 // 0.55 * 0.15 is less than the weight
	out := make([]Terms, 2)
	if pick, _ := explain(Default(), c, 100, nil, 0, out); pick != 1 {
		t.Errorf("picked %d: %+v", pick, out)
	}
	c[0].Matched = 40
	if pick, _ := explain(Default(), c, 100, nil, 0, out); pick != 0 {
		t.Errorf("picked %d: %+v", pick, out)
	}
}
