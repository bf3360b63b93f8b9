package cluster

import (
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
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
	if want := []float64{1000, 2000, 2000, 3000}; !slices.Equal(r.singles.all.ttft, want) {
		t.Errorf("TTFT %v ms, want %v", r.singles.all.ttft, want)
	}
	for name, bad := range map[string]func(*Config){
		"speeds":    func(c *Config) { c.Speeds = []float64{1} },
		"slow":      func(c *Config) { c.Slow[0].Node = 2 },
		"telemetry": func(c *Config) { c.Telemetry.Age = -1 },
		"routers":   func(c *Config) { c.Routers = -1 },
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
	node := s.routers[0].members[1]
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

// TestSeveralRouters: requests go to the routers in turn, and each router hears of the others'
// requests from the heartbeats only.
func TestSeveralRouters(t *testing.T) {
	cfg := Config{
		Nodes: 2, Routers: 2, Mode: "predicted", Limit: -1, Telemetry: Telemetry{Every: time.Second},
		Engine: engine.Config{CacheBlocks: 8, MaxSeqs: 1, PrefillTokensPerSecond: 1000},
	}
	w := alone(1, 100, 100, 100, 100, 100, 100)
	s, err := newSimulation(w, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.listen(0) // the first heartbeats, before any request
	s.now = 100 * time.Millisecond
	for i := range w.requests {
		s.arrive(&w.requests[i])
	}
	one, two := s.routers[0], s.routers[1]
	if s.result.MostInFlight < 3 {
		t.Errorf("at most %d of 6 requests at one of 2 nodes", s.result.MostInFlight)
	}
	for i := range s.nodes {
		held := int32(len(s.nodes[i].unbegun))
		a, b := one.members[i], two.members[i]
		if a.InFlight()+b.InFlight() != held || a.Load().Others != 0 || b.Load().Others != 0 {
			t.Errorf("node %d has %d requests; the routers know of %d and %d, and of %d and %d of others", i, held,
				a.InFlight(), b.InFlight(), a.Load().Others, b.Load().Others)
		}
	}
	s.listen(time.Second + 500*time.Millisecond) // each node's second one; nothing has ended
	for i := range s.nodes {
		a, b := one.members[i], two.members[i]
		if a.Load().Others != b.InFlight() || b.Load().Others != a.InFlight() || a.InFlight()+b.InFlight() == 0 {
			t.Errorf("node %d: %d of others beside %d, and %d beside %d", i, a.Load().Others, b.InFlight(),
				b.Load().Others, a.InFlight())
		}
	}
	if n := one.index.Len(); n != 3*(1000/prefix.BlockTokens) || two.index.Len() != n {
		t.Errorf("the routers believe in %d and %d blocks", n, two.index.Len())
	}
	for len(s.events) > 0 {
		s.step()
	}
	if s.result.Answered != 6 || s.result.Refused != 0 {
		t.Errorf("%d answered, %d refused", s.result.Answered, s.result.Refused)
	}
}

// TestAnswersGrow: the router is told of every token.
func TestAnswersGrow(t *testing.T) {
	cfg := Config{Nodes: 1, Mode: "random", Engine: engine.Config{CacheBlocks: 8}}
	s, err := newSimulation(alone(48, 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.arrive(&s.workload.requests[0])
	f := s.nodes[0].unbegun[0]
	told := 0
	for len(s.events) > 0 {
		before := f.told
		s.step()
		if p := f.Produced(); f.told != p || p > before+1 {
			t.Fatalf("the router was told of %d tokens of %d, and of %d before", f.told, p, before)
		}
		if f.told > before {
			told++
		}
	}
	if told != 48 || !f.over || len(s.nodes[0].answers) != 0 {
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

// TestRecoveredTimes: requests after all nodes were slower have figures of their own.
func TestRecoveredTimes(t *testing.T) {
	at := func(node int, from, to time.Duration) Slow {
		return Slow{Node: node, Slowdown: engine.Slowdown{From: from * time.Second, To: to * time.Second, Factor: 3}}
	}
	cfg := Config{
		Nodes: 1, Mode: "round_robin", Slow: []Slow{at(0, 9, 11), at(0, 29, 31)},
		Engine: engine.Config{CacheBlocks: 8, PrefillTokensPerSecond: 1000},
	}
	r := run(t, alone(1, 0, 10_000, 20_000, 30_000, 40_000, 50_000), cfg) // at 20 s one is still to come
	each := func(n int, ms float64) Phase {
		of := Times{n, ms, ms, ms, ms}
		return Phase{of, of}
	}
	if want := (Phases{Before: each(1, 1000), Slow: each(2, 3000), After: each(2, 1000)}); r.Phases != want {
		t.Errorf("%+v, want %+v", r.Phases, want)
	}
}

// TestSlowNodeIsTriedAgain checks that mode predicted sends few requests to a node that is slow,
// and finds out that it is fast again although the others can do without it: a node of three that
// is slow for long, and one of eight that is slow at its first answers.
func TestSlowNodeIsTriedAgain(t *testing.T) {
	for _, c := range []struct {
		nodes     int
		perSecond float64
		from, to  time.Duration
		share     float64 // of the requests in the ten minutes after that
	}{
		{3, 1.4, time.Minute, 16 * time.Minute, 0.1},
		{8, 5, 0, time.Minute, 0.06},
	} {
		meanwhile, after := sharesOfSlow(t, c.nodes, c.perSecond, c.from, c.to, false)
		tried, back := sharesOfSlow(t, c.nodes, c.perSecond, c.from, c.to, true)
		t.Logf("%d nodes: share while slow %.3f, after that %.3f; without exploration %.3f and %.3f", c.nodes, tried,
			back, meanwhile, after)
		if tried > 0.03 || back < c.share || back < 1.2*after {
			t.Errorf("of %d nodes a slow one gets %.3f of the requests, and after that %.3f; without exploration %.3f "+
				"and %.3f", c.nodes, tried, back, meanwhile, after)
		}
	}
}

// sharesOfSlow returns the share of a node in the requests while it is five times slower than its
// like, and in the ten minutes after that, in mode predicted.
func sharesOfSlow(
	t *testing.T, nodes int, perSecond float64, from, to time.Duration, explores bool,
) (meanwhile, after float64) {
	t.Helper()
	kinds, err := TrafficsNamed([]string{"recovery"})
	if err != nil {
		t.Fatal(err)
	}
	kind, end := kinds[0], to+10*time.Minute
	kind.Fleet.Nodes = nodes
	kind.Requests = int(perSecond*end.Seconds()) * 8 / nodes
	var own, all [3]int // requests until from, to and end
	for k, until := range []time.Duration{from, to, end} {
		for seed := range uint64(4) {
			w, cfg, err := kind.At(seed, perSecond)
			if err != nil {
				t.Fatal(err)
			}
			w.requests = slices.DeleteFunc(w.requests, func(r request) bool { return r.at >= until })
			if len(w.requests) == 0 {
				continue
			}
			p := *policy.Default()
			p.Predicted.Explore = explores
			cfg.Mode, cfg.Policy = policy.Predicted.String(), &p
			cfg.Slow[0].From, cfg.Slow[0].To = from, to
			r := run(t, w, cfg)
			own[k], all[k] = own[k]+r.perNode[cfg.Slow[0].Node], all[k]+w.Len()
		}
	}
	share := func(k int) float64 { return float64(own[k]-own[k-1]) / float64(all[k]-all[k-1]) }
	return share(1), share(2)
}
