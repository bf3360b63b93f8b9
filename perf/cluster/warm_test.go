package cluster

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestHostsByHand compares times computed by hand. A node computes 1024 tokens a second and has
// memory for 4 blocks of 512. It takes a second to load a block from its host, and its host two
// seconds to get one from the other host.
func TestHostsByHand(t *testing.T) {
	w, seen := &Workload{}, map[uint64]bool{}
	// Prompts of two blocks and one token. Each goes to both nodes in turn.
	for i, prompt := range []int64{10, 10, 20, 20, 10, 10, 30, 30} {
		q := trace.Request{Timestamp: int64(i) * 100_000, InputLength: 1025, OutputLength: 1,
			HashIDs: []int64{prompt, prompt + 1, 1000 + int64(i)}}
		w.add(&q, false, seen)
	}
	cfg := Config{
		Nodes: 2, Mode: "round_robin",
		Engine: engine.Config{CacheBlocks: 4, PrefillTokensPerSecond: 1024},
		Hosts:  Hosts{Blocks: 100, LoadRate: hostBlockBytes, PullRate: hostBlockBytes / 2.0},
	}
	s, err := newSimulation(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.run()
	const token = 1000.0 / 1024
	computed, pulled, loaded := 1025*token, 6000+token, 1000+token // of two blocks one is still there
	want := []float64{computed, pulled, computed, pulled, loaded, loaded, computed, pulled}
	slices.Sort(want)
	for i, got := range s.result.singles.all.ttft {
		if math.Abs(got-want[i]) > 0.01 {
			t.Errorf("TTFT %d is %v ms, want %v", i, got, want[i])
		}
	}
	if r := s.result; r.Loaded != 8*512 || r.Pulled != 6*512 || r.CachedTokens != 10*512 {
		t.Errorf("%d tokens loaded, %d of them from the other host, %d cached", r.Loaded, r.Pulled, r.CachedTokens)
	}

	cfg.Hosts.Blocks, cfg.Hosts.PullRate = 2, 0
	r := run(t, w, cfg)
	if r.Loaded != 0 { // the hosts have forgotten the first prompt, and do not ask each other
		t.Errorf("%d tokens loaded", r.Loaded)
	}
	cfg.Skip = 6
	if r = run(t, w, cfg); r.TTFT.Count != 2 || r.Answered != 8 || r.PromptTokens != 2*1025 {
		t.Errorf("without the first 6 requests: %+v", r)
	}
}

// TestRoutersAreTold checks that a router that is told of hosts' blocks expects them, although it
// has never sent the prompt there.
func TestRoutersAreTold(t *testing.T) {
	for told, want := range map[Told]int64{ToldNothing: 0, ToldHost: 4096, ToldFleet: 4096} {
		w, seen := &Workload{}, map[uint64]bool{}
		for i := range 2 {
			q := trace.Request{Timestamp: int64(i) * 100_000, InputLength: 4097, OutputLength: 1}
			for k := range 8 {
				q.HashIDs = append(q.HashIDs, int64(k))
			}
			w.add(&q, false, seen)
		}
		r := run(t, w, Config{
			Nodes: 8, Routers: 2, Mode: "predicted", Engine: engine.Config{CacheBlocks: 16},
			Hosts: Hosts{Blocks: 100, LoadRate: 20e9, PullRate: 3e9, Told: told},
		})
		if r.Believed != want {
			t.Errorf("told %d: %d tokens are believed to be there, want %d", told, r.Believed, want)
		}
	}
}

// TestJudgeWarm checks the tables of a small trial.
func TestJudgeWarm(t *testing.T) {
	j, err := JudgeWarm(t.Context(), WarmTrial{
		Mode: "predicted", Loads: []float64{0.5}, WorkingSet: 0.1, Host: 1, LoadRate: 20e9, PullRate: 3e9,
		Requests: 300, Seeds: 2, FirstSeed: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	text := j.Markdown()
	for _, want := range []string{"| 0.5 | no caches | ", "| 0.5 | fleet | ", "seeds 1 to 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if len(j.Rows) != 5 || len(j.Against) != 3 || j.Against[1].Told != "fleet" ||
		j.Rows[3].results[0].TTFT.Count != 150 {
		t.Errorf("%+v", j)
	}
}

// TestReturning checks the documents to which requests return.
func TestReturning(t *testing.T) {
	w := loaded(t, newReturning(1000, 1, 10, 4000))
	if w.Len() != 4000 || w.Distinct() < 990 || w.Distinct() > 1000 {
		t.Errorf("%d requests for %d blocks", w.Len(), w.Distinct())
	}
	if r := w.Reusable(); r < 0.9 {
		t.Errorf("%.2f can be found again", r)
	}
	if s := w.Span(); s < 300*time.Second || s > 500*time.Second {
		t.Errorf("%v at 10 requests per second", s)
	}
}
