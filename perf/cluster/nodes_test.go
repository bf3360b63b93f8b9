package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/sim/engine"
)

// alone returns a workload of prompts of 1000 tokens with nothing in common, at these milliseconds.
func alone(answer int, at ...int64) *Workload {
	w := &Workload{}
	for i, ms := range at {
		q := trace.Request{Timestamp: ms, InputLength: 1000, OutputLength: answer, HashIDs: []int64{int64(i), 100}}
		w.add(&q, false, map[uint64]bool{})
	}
	return w
}

// TestSpeeds: each node has its speed, and one is slower for a time.
func TestSpeeds(t *testing.T) {
	w := alone(1, 0, 0, 10_000, 10_000)
	cfg := Config{
		Nodes: 2, Mode: "round_robin", Speeds: []float64{1, 0.5},
		Slow:   []Slow{{Node: 0, Slowdown: engine.Slowdown{From: 9 * time.Second, To: 11 * time.Second, Factor: 3}}},
		Engine: engine.Config{CacheBlocks: 8, PrefillTokensPerSecond: 1000},
	}
	r := run(t, w, cfg)
	if want := []float64{1000, 2000, 2000, 3000}; !slices.Equal(r.ttft, want) {
		t.Errorf("TTFT %v ms, want %v", r.ttft, want)
	}
	for name, bad := range map[string]func(*Config){
		"speeds":    func(c *Config) { c.Speeds = []float64{1} },
		"slow":      func(c *Config) { c.Slow[0].Node = 2 },
		"telemetry": func(c *Config) { c.Telemetry.Age = -1 },
	} {
		c := cfg
		c.Slow = slices.Clone(c.Slow)
		bad(&c)
		if _, err := Run(w, c); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

// TestTelemetryIsStale: the router hears what an engine had some time ago.
func TestTelemetryIsStale(t *testing.T) {
	cfg := Config{
		Nodes: 2, Mode: "round_robin", Limit: -1, Telemetry: Telemetry{Every: time.Second, Age: 300 * time.Millisecond},
		Engine: engine.Config{CacheBlocks: 8, MaxSeqs: 1, PrefillTokensPerSecond: 1000},
	}
	s, err := newSimulation(alone(1, 100, 100, 100, 100), cfg)
	if err != nil {
		t.Fatal(err)
	}
	node := s.router.members[1]
	if i := node.Info(); i.EngineSlots != 1 || i.BlockTokens != trace.BlockTokens || i.MaxBatchedTokens != 2048 {
		t.Errorf("the router knows of %+v", i)
	}
	s.now = 100 * time.Millisecond
	for i := range s.workload.requests {
		s.arrive(&s.workload.requests[i])
	}
	for _, at := range []struct {
		ms                 time.Duration
		held, queued, free float64
	}{
		{799, 0, 0, 8},
		{800, 2, 1, 6}, // the sample of 500 ms
		{1799, 2, 1, 6},
		{1800, 1, 0, 6}, // the first answer came at 1100 ms
		{2800, 0, 0, 8},
	} {
		now := at.ms * time.Millisecond
		for len(s.events) > 0 && s.events[0].at <= now {
			s.step()
		}
		s.listen(now)
		l := node.Load()
		held, _ := l.InFlight.Get()
		queued, _ := l.QueueDepth.Get()
		free, _ := l.FreeBlocks.Get()
		if held != at.held || queued != at.queued || free != at.free || l.TotalBlocks.Or(0) != 8 || l.Others != 0 {
			t.Errorf("after %v: %g held, %g queued, %g free, %d of others; want %+v", now, held, queued, free,
				l.Others, at)
		}
	}
}

// TestAnswersGrow: the router is told at every leg.Every tokens after the first.
func TestAnswersGrow(t *testing.T) {
	cfg := Config{Nodes: 1, Mode: "random", Engine: engine.Config{CacheBlocks: 8}}
	s, err := newSimulation(alone(3*leg.Every, 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.arrive(&s.workload.requests[0])
	f := s.nodes[0].unbegun[0]
	told := 0
	for len(s.events) > 0 {
		next := f.next
		s.step()
		if p := f.Produced(); (f.next > next) != (p > 1 && p%leg.Every == 1) || f.next > next && f.next != p+leg.Every {
			t.Fatalf("after %d tokens the next word is due at %d", p, f.next)
		}
		if f.next > next {
			told++
		}
	}
	if told != 2 || !f.over || len(s.nodes[0].answers) != 0 {
		t.Errorf("told %d times; over: %v", told, f.over)
	}
	s.result.finish(s)
	if want := 15.2; s.result.PerToken.Mean < want-0.001 || s.result.PerToken.Mean > want+0.001 {
		t.Errorf("%g ms per token, want %g", s.result.PerToken.Mean, want)
	}
}

// TestSmallCachesPreempt: at full memory engines take blocks from running requests, and every
// request is still answered.
func TestSmallCachesPreempt(t *testing.T) {
	w := generated(t, 300)
	cfg := Config{Mode: "score", Nodes: 4, Speed: 10, Limit: -1, Engine: engine.Config{CacheBlocks: 250}}
	if r := run(t, w, cfg); r.Preemptions == 0 || r.Answered != w.Len() {
		t.Errorf("%d preemptions, %d answered of %d", r.Preemptions, r.Answered, w.Len())
	}
	cfg.Engine.CacheBlocks = 20_000
	if r := run(t, w, cfg); r.Preemptions != 0 {
		t.Errorf("%d preemptions of large caches", r.Preemptions)
	}
}
