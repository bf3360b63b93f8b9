package cluster

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

func loaded(t *testing.T, s trace.Source) *Workload {
	t.Helper()
	w, err := Load(s, false)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func generated(t *testing.T, requests int) *Workload {
	t.Helper()
	return loaded(t, trace.Generator{Seed: 1, Requests: requests}.Source())
}

func run(t *testing.T, w *Workload, cfg Config) *Result {
	t.Helper()
	r, err := Run(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestByHand has two nodes with 512 prompt tokens/s, decode steps of 10 ms, and a negligible cost
// per sequence.
func TestByHand(t *testing.T) {
	w := &Workload{}
	add := func(ms int64, prompt, answer int, ids ...int64) {
		w.add(&trace.Request{Timestamp: ms, InputLength: prompt, OutputLength: answer, HashIDs: ids}, false,
			map[uint64]bool{})
	}
	add(0, 1000, 1, 1, 2)        // to node 0: computes 1000 tokens
	add(0, 1000, 2, 1, 3)        // to node 1: computes 1000 tokens, with one decode step
	add(3_000, 1000, 1, 1, 4)    // to node 0: finds block 1, computes 488
	add(4_000, 1536, 1, 1, 4, 5) // to node 1: finds block 1, computes 1024
	cfg := Config{
		Nodes: 2, Mode: "round_robin",
		Engine: engine.Config{CacheBlocks: 8, PrefillTokensPerSecond: 512, DecodeStep: 10 * time.Millisecond,
			DecodePerSequence: time.Nanosecond},
	}
	r := run(t, w, cfg)
	ms := func(tokens float64) float64 { return tokens / 512 * 1000 }
	wantTTFT := []float64{ms(488), ms(1000), ms(1000), ms(1024)}
	slices.Sort(wantTTFT)
	for i, got := range r.singles.all.ttft {
		if diff := got - wantTTFT[i]; diff > 0.001 || diff < -0.001 {
			t.Errorf("TTFT %d is %.3f ms, want %.3f", i, got, wantTTFT[i])
		}
	}
	if got, want := r.E2E.P99, ms(1024); got < want-0.001 || got > want+0.001 {
		t.Errorf("the longest took %.3f ms, want %.3f", got, want)
	}
	if r.CachedTokens != 1024 || r.PromptTokens != 4536 || r.Refused != 0 || r.BusiestShare != 0.5 {
		t.Errorf("cached %d of %d, refused %d, busiest %g", r.CachedTokens, r.PromptTokens, r.Refused, r.BusiestShare)
	}
	// The first two prompts and the third are computed before the last arrival at 4 s.
	if got, want := r.Utilisation, (1000.+1000+488)/512/8; got < want-1e-6 || got > want+1e-6 {
		t.Errorf("prefill busy for %g, want %g", got, want)
	}
	cfg.Engine.MaxSeqs, cfg.Nodes = 1, 1
	if r := run(t, w, cfg); r.Refused != 1 || r.Answered != 3 {
		t.Errorf("one slot: %d refused, %d answered; want 1 and 3", r.Refused, r.Answered)
	}
}

// TestEveryRequestEndsOnce: every request ends once in every mode, even if slots run out and caches
// overflow.
func TestEveryRequestEndsOnce(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	w := generated(t, 300)
	for _, mode := range Modes() {
		cfg := Config{
			Nodes: 1 + r.IntN(6), Routers: 1 + r.IntN(3), Mode: mode, Speed: 1 + 40*r.Float64(), Seed: r.Uint64(),
			IndexBlocks: 1024 << r.IntN(8),
			Engine:      engine.Config{CacheBlocks: 250 + r.IntN(500), MaxSeqs: 1 + r.IntN(20)},
		}
		s, err := newSimulation(w, cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.run()
		got, sent := s.result, 0
		for _, n := range got.perNode {
			sent += n
		}
		if got.Answered+got.Refused != w.Len() || sent != got.Answered || got.TTFT.Count != got.Answered ||
			got.Answered == 0 {
			t.Errorf("%s: %d answered, %d refused, %d sent of %d", mode, got.Answered, got.Refused, sent, w.Len())
		}
		for _, router := range s.routers {
			for n := range router.nodes {
				if n.InFlight() != 0 {
					t.Errorf("%s: %s has %d requests in flight in the end", mode, n.ID, n.InFlight())
				}
			}
		}
		if most := cfg.Engine.MaxSeqs * cfg.Routers; got.MostInFlight > most { // the limit is each router's
			t.Errorf("%s: %d in flight on a node, where %d are allowed", mode, got.MostInFlight, most)
		}
		if got.HitRatio < 0 || got.HitRatio > w.Reusable()+0.3 || got.Utilisation > 1 {
			t.Errorf("%s: hit ratio %g, utilisation %g", mode, got.HitRatio, got.Utilisation)
		}
	}
}

func TestEqualSeedsEqualResults(t *testing.T) {
	w := generated(t, 500)
	for _, mode := range Modes() {
		cfg := Config{Mode: mode, Speed: 4, Seed: 7, IndexBlocks: 4096, Engine: engine.Config{CacheBlocks: 400}}
		first, second := run(t, w, cfg), run(t, w, cfg)
		if !reflect.DeepEqual(first, second) {
			t.Errorf("%s: %+v, then %+v", mode, first, second)
		}
	}
	cfg := Config{Mode: "random", Seed: 7, Engine: engine.Config{CacheBlocks: 400}}
	first := run(t, w, cfg)
	cfg.Seed++
	if second := run(t, w, cfg); reflect.DeepEqual(first, second) {
		t.Error("another seed draws the same nodes")
	}
}

func TestRefusals(t *testing.T) {
	w := generated(t, 100)
	for name, cfg := range map[string]Config{
		"mode":  {Mode: "best", Engine: engine.Config{CacheBlocks: 400}},
		"pins":  {Mode: "direct", Engine: engine.Config{CacheBlocks: 400}},
		"cache": {Mode: "score", Engine: engine.Config{CacheBlocks: 4}},
		"span":  {Mode: "score", Speed: 1e-4, Engine: engine.Config{CacheBlocks: 400}},
		"nodes": {Mode: "score", Nodes: 5000, Engine: engine.Config{CacheBlocks: 400}},
	} {
		if _, err := Run(w, cfg); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	if _, err := Load(trace.NewReader(strings.NewReader("")), false); err == nil {
		t.Error("an empty trace was taken")
	}
}

func TestKeysCoverWhatIsBefore(t *testing.T) {
	w := &Workload{}
	seen := map[uint64]bool{}
	for _, ids := range [][]int64{{0, 1, 2}, {0, 1, 3}, {5, 1, 2}} {
		w.add(&trace.Request{InputLength: 1200, OutputLength: 500, HashIDs: ids}, false, seen)
	}
	var keys [3][]uint64
	for i := range w.requests {
		keys[i] = w.requests[i].keys(nil)
		if len(keys[i]) != 75 || len(w.requests[i].blocks()) != 3 {
			t.Fatalf("%d keys and %d blocks of 1200 tokens and an answer of 500", len(keys[i]),
				len(w.requests[i].blocks()))
		}
	}
	if n := common(keys[0], keys[1]); n != 64 {
		t.Errorf("two full blocks in common make %d, want 64", n)
	}
	if n := common(keys[0], keys[2]); n != 0 {
		t.Errorf("the same blocks after another beginning have %d in common", n)
	}
	a, b := w.requests[0].blocks(), w.requests[1].blocks()
	if n := common(a, b); n != 2 {
		t.Errorf("%d engine blocks in common, want 2", n)
	}
	if w.distinct = len(seen); w.distinct != 4 {
		t.Errorf("%d distinct blocks, want 4", w.distinct)
	}
}

func common[T comparable](a, b []T) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// TestBurst: a burst's requests share the common blocks, and every answer begins before it ends.
func TestBurst(t *testing.T) {
	w := Burst{Requests: 40, Over: 2 * time.Second}.Workload()
	if w.Len() != 40 || w.Tokens() != 40*6100 || w.Span() != 2*time.Second || w.Distinct() != 6000/trace.BlockTokens {
		t.Fatalf("%d requests of %d tokens over %v, %d blocks", w.Len(), w.Tokens(), w.Span(), w.Distinct())
	}
	if n := common(w.requests[0].keys(nil), w.requests[39].keys(nil)); n != 6000/trace.BlockTokens*indexBlocks {
		t.Errorf("%d blocks of the index in common", n)
	}
	cfg := Config{Nodes: 4, Mode: "score", Limit: -1, Engine: engine.Config{CacheBlocks: 1000}}
	s, err := newSimulation(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.run()
	if s.result.Answered != 40 || s.result.Refused != 0 {
		t.Errorf("%d answered, %d refused", s.result.Answered, s.result.Refused)
	}
	for i := range s.nodes {
		if len(s.nodes[i].unbegun) != 0 {
			t.Errorf("%d answers of node %d never began", len(s.nodes[i].unbegun), i)
		}
	}
}

// TestAColdBurstIsSpread: the busiest node gets at most twice the mean. The figures are much worse
// without pending.
func TestAColdBurstIsSpread(t *testing.T) {
	for _, limit := range []int{-1, 256} {
		for _, over := range []time.Duration{0, 4 * time.Second} {
			cfg := Config{Mode: "score", Limit: limit, Engine: engine.Config{CacheBlocks: 4000, MaxSeqs: max(limit, 0)}}
			w := Burst{Over: over}.Workload()
			with := run(t, w, cfg)
			old := *policy.Default()
			old.Score.Weights.Pending = 0
			cfg.Policy = &old
			without := run(t, w, cfg)
			if with.BusiestToMean > 2 || without.BusiestToMean < 4 || with.TTFT.Mean > 0.5*without.TTFT.Mean {
				t.Errorf("limit %d over %v: busiest %.2f and TTFT %.0f ms, without %.2f and %.0f ms", limit, over,
					with.BusiestToMean, with.TTFT.Mean, without.BusiestToMean, without.TTFT.Mean)
			}
		}
	}
}

// TestBusyUntilTheLastArrival checks that a step that spans the last arrival counts in part, and a
// step after it not at all.
func TestBusyUntilTheLastArrival(t *testing.T) {
	w := &Workload{}
	for i, ms := range []int64{0, 500, 600} { // the first prompt takes a second
		w.add(&trace.Request{Timestamp: ms, InputLength: 512, OutputLength: 1, HashIDs: []int64{int64(i)}}, false,
			map[uint64]bool{})
	}
	cfg := Config{Nodes: 1, Mode: "round_robin", Engine: engine.Config{CacheBlocks: 8, PrefillTokensPerSecond: 512}}
	if got := run(t, w, cfg).Utilisation; got < 1-1e-6 || got > 1+1e-6 {
		t.Errorf("prefill of one node that computes all the time is busy for %g", got)
	}
	cfg.Nodes = 3 // they begin at 0, 0.5 and 0.6 s
	if got, want := run(t, w, cfg).Utilisation, (0.6+0.1)/0.6/3; got < want-1e-6 || got > want+1e-6 {
		t.Errorf("prefill of three nodes is busy for %g, want %g", got, want)
	}
}

// TestSearchOfFewSteps checks that a search finds the speed where each node has a few long steps.
func TestSearchOfFewSteps(t *testing.T) {
	w := generated(t, 60)
	cfg := Config{Engine: engine.Config{CacheBlocks: 2 * w.Longest(), MaxBatchTokens: 1 << 16}}
	if speed, err := Search(w, cfg, "round_robin", 0.8); err != nil || speed > 100 {
		t.Errorf("speed %g, %v", speed, err)
	}
	cfg.Routers = 64
	_, err := Search(w, cfg, "round_robin", 0.8)
	if !errors.Is(err, ErrShort) ||
		!strings.Contains(err.Error(), "too few requests, 60, to reach all 8 nodes from each of 64 ") {
		t.Errorf("of 64 routers that all ask the first node: %v", err)
	}
}
