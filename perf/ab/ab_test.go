package ab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), // one per process
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// progress is a buffer for several writers.
type progress struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (p *progress) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.Write(b)
}

// String returns the whole text.
func (p *progress) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.b.String()
}

// engines starts n simulated engines.
func engines(t *testing.T, n int, tweak ...func(*engine.Config)) (all []*engine.Engine, backends []string) {
	t.Helper()
	for i := range n {
		c := engine.Config{ID: fmt.Sprint("sim-", i), CacheBlocks: 1 << 16, Speed: 200}
		for _, f := range tweak {
			f(&c)
		}
		e, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		all, backends = append(all, e), append(backends, fmt.Sprintf("%s,id=sim-%d", e.URL(), i))
	}
	return all, backends
}

// requests returns a trace of conversations.
func requests(t *testing.T, n int) (list []trace.Request) {
	t.Helper()
	g := trace.Generator{Requests: n, Mix: trace.Mix{Chat: 1, Agents: 1}, SystemPrompts: 2, PerSecond: 20}
	for q, err := range trace.All(g.Source()) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, q)
	}
	return list
}

// comparison compares two modes on the backends.
func comparison(t *testing.T, backends []string, modes [2]string, n int) (Config, *progress) {
	t.Helper()
	log := new(progress)
	own := &Own{Backends: backends, Patience: 20 * time.Second,
		Logger: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	c := Config{
		Requests: requests(t, n), Rounds: 1, Reset: ByText, Salt: 7, Progress: log,
		Replay: replay.Config{Speed: 20, MaxOutputTokens: 8, IgnoreEOS: true},
	}
	for i, mode := range modes {
		c.Sides[i] = Side{mode, func(ctx context.Context) (*Site, error) { return own.Start(ctx, mode) }}
	}
	return c, log
}

// at is a side whose router runs already.
func at(name, url string) Side {
	return Side{name, func(context.Context) (*Site, error) { return Running(url), nil }}
}

func compared(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestScoreBeatsRoundRobin compares two modes that differ on engines with warm conversations.
func TestScoreBeatsRoundRobin(t *testing.T) {
	_, backends := engines(t, 4)
	c, log := comparison(t, backends, [2]string{"round_robin", "score"}, 120)
	c.Rounds, c.Warmup = 2, 4
	r := compared(t, c)
	if r.Scale < 1 || r.Scale > 1.1 {
		t.Errorf("%v tokens for one of the trace", r.Scale)
	}
	if r.Model != "sim" || r.Rounds != 2 || r.Requests != 120 || r.Refused != [2]int{} || r.Failed != [2]int{} {
		t.Fatalf("%+v", r)
	}
	for _, m := range r.Metrics {
		if m.Sides == nil || m.Ratio == nil || m.Sides[0].Median <= 0 || m.Ratio.Low > m.Ratio.Median {
			t.Errorf("%s: %+v", m.Name, m)
		}
		if m.Name == "hit_ratio" && (m.Ratio.Low < 1.1 || m.Sides[1].Median > r.Reusable+0.1) {
			t.Errorf("score finds %+v of %.3f, %+v of round robin's", m.Sides[1], r.Reusable, m.Ratio)
		}
		if m.Name == "busiest_share" && (m.Sides[0].Median > 0.26 || m.Sides[1].Median < m.Sides[0].Median) {
			t.Errorf("busiest node: %+v", m.Sides)
		}
	}
	if text, err := json.Marshal(r); err != nil || !strings.Contains(string(text), `"itl_p50_ms"`) {
		t.Errorf("%s, %v", text, err)
	}
	order := runNames(log.String())
	if want := []string{"warm-up, round_robin", "warm-up, score", "round 1 of 2, round_robin", "round 1 of 2, score",
		"round 2 of 2, score", "round 2 of 2, round_robin"}; !slices.Equal(order, want) {
		t.Errorf("runs %q\n%s", order, log)
	}
}

// runNames returns the names of the runs in a log.
func runNames(log string) (runs []string) {
	for line := range strings.Lines(log) {
		if name, rest, _ := strings.Cut(line, ": "); strings.Contains(rest, " requests in ") &&
			!strings.Contains(name, "rounds of") {
			runs = append(runs, name)
		}
	}
	return runs
}

// TestRunsFindEmptyCaches compares a mode with itself on one engine. The second run of the same
// trace finds as much as the first, unless nothing is reset.
func TestRunsFindEmptyCaches(t *testing.T) {
	for _, reset := range Resets() {
		if reset == string(BySGLang) {
			continue // the simulated engine is vLLM
		}
		_, backends := engines(t, 1)
		c, log := comparison(t, backends, [2]string{"random", "random"}, 40)
		c.Reset = Reset(reset)
		r := compared(t, c)
		first, second := r.Runs[0][0].HitRatio, r.Runs[0][1].HitRatio
		if empty := second < r.Reusable+0.1; empty != (Reset(reset) != None) || first > r.Reusable+0.1 {
			t.Errorf("%s: hit ratios %.3f and %.3f, the trace repeats %.3f\n%s", reset, first, second, r.Reusable, log)
		}
	}
}

// TestSidesAreRunningRouters compares two endpoints that run already.
func TestSidesAreRunningRouters(t *testing.T) {
	all, _ := engines(t, 2, func(c *engine.Config) { c.OmitCachedTokens, c.DecodeStep = true, time.Millisecond })
	c, _ := comparison(t, nil, [2]string{}, 10)
	for i, e := range all {
		c.Sides[i] = at(fmt.Sprint("router ", i), e.URL())
	}
	r := compared(t, c)
	for _, m := range r.Metrics {
		if measured := m.Name != "hit_ratio" && m.Name != "busiest_share"; measured != (m.Sides != nil) {
			t.Errorf("%s: %+v", m.Name, m.Sides)
		}
	}
	if r.Sides != [2]string{"router 0", "router 1"} || r.Failed != [2]int{} {
		t.Errorf("%+v", r)
	}
}

// TestRefusalsAreCounted checks that refusals and other failures are counted apart.
func TestRefusalsAreCounted(t *testing.T) {
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if r.URL.Path == "/v1/models" {
			fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
			return
		}
		switch n++; n % 5 {
		case 0:
			w.WriteHeader(503)
		case 1:
			w.WriteHeader(500)
		default:
			fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n")
		}
	}))
	defer s.Close()
	c, _ := comparison(t, nil, [2]string{}, 20)
	for i := range c.Sides {
		c.Sides[i] = at("x", s.URL)
	}
	if r := compared(t, c); r.Refused != [2]int{4, 4} || r.Failed != [2]int{4, 4} {
		t.Errorf("refused %v, failed %v", r.Refused, r.Failed)
	}
}

func TestMistakes(t *testing.T) {
	all, backends := engines(t, 1)
	for want, change := range map[string]func(*Config, *Own){
		"round 1 of 1, a: not every engine is ready after 50ms: ": func(_ *Config, o *Own) {
			o.Backends, o.Patience = []string{"http://127.0.0.1:1"}, 50*time.Millisecond
		},
		`model "other" is not served; `: func(c *Config, _ *Own) { c.Replay.Model = "other" },
		"every request failed: map[status 429:3]; the first: {": func(*Config, *Own) {
			all[0].SetFault(&engine.Fault{Status: 429, Path: "/v1/chat/completions"})
		},
		"backend: no engine to route to": func(_ *Config, o *Own) { o.Backends = nil },
	} {
		own := &Own{Backends: backends, Logger: slog.New(slog.DiscardHandler)}
		c, _ := comparison(t, backends, [2]string{}, 3)
		for i, name := range []string{"a", "b"} {
			c.Sides[i] = Side{name, func(ctx context.Context) (*Site, error) { return own.Start(ctx, "score") }}
		}
		change(&c, own)
		if r, err := Run(t.Context(), c); err == nil || r != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
		all[0].SetFault(nil)
	}
}

// TestWaitingIsSaid checks that a comparison says for which engine it waits.
func TestWaitingIsSaid(t *testing.T) {
	var log, progress bytes.Buffer
	own := &Own{Backends: []string{"http://127.0.0.1:1"}, Patience: time.Second}
	own.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c, _ := comparison(t, nil, [2]string{}, 3)
	c.Progress, c.Rounds = &progress, 1
	for i := range c.Sides {
		c.Sides[i] = Side{"x", func(ctx context.Context) (*Site, error) { return own.Start(ctx, "score") }}
	}
	if _, err := Run(t.Context(), c); err == nil ||
		!strings.Contains(log.String(), "waiting for the engines\" at_most=1s") ||
		!strings.Contains(log.String(), "127.0.0.1:1: ") ||
		!strings.HasPrefix(progress.String(), "1 round of two runs") {
		t.Errorf("%v\n%s\n%s", err, &log, &progress)
	}
}

// TestInterruptedRunsReport checks that the complete rounds are reported.
func TestInterruptedRunsReport(t *testing.T) {
	all, _ := engines(t, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c, _ := comparison(t, nil, [2]string{}, 5)
	runs := 0
	for i := range c.Sides {
		c.Sides[i] = Side{"x", func(context.Context) (*Site, error) {
			if runs++; runs == 3 {
				cancel()
			}
			return Running(all[0].URL()), nil
		}}
	}
	c.Rounds = 3
	r, err := Run(ctx, c)
	if err == nil || err.Error() != "interrupted" || r == nil || r.Rounds != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestStopFails checks that the error of a router's end is not lost.
func TestStopFails(t *testing.T) {
	all, _ := engines(t, 1)
	c, _ := comparison(t, nil, [2]string{}, 2)
	for i := range c.Sides {
		c.Sides[i] = Side{"x", func(context.Context) (*Site, error) {
			return &Site{URL: all[0].URL(), Stop: func() error { return errors.New("it hangs") }}, nil
		}}
	}
	if r, err := Run(t.Context(), c); err == nil || r != nil || err.Error() != "round 1 of 1, x: it hangs" {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestReusable checks the share of tokens that a prompt has in common with an earlier one.
func TestReusable(t *testing.T) {
	at := func(tokens int, ids ...int64) trace.Request { return trace.Request{InputLength: tokens, HashIDs: ids} }
	for name, c := range map[string]struct {
		requests []trace.Request
		spread   bool
		want     float64
	}{
		"nothing twice":      {[]trace.Request{at(600, 1, 2), at(512, 2)}, false, 0},
		"a full block":       {[]trace.Request{at(600, 1, 2), at(1000, 1, 3)}, false, 512. / 1600},
		"a part of a block":  {[]trace.Request{at(600, 1, 2), at(1000, 1, 2), at(700, 1, 2)}, false, (600. + 700) / 2300},
		"behind a new block": {[]trace.Request{at(1024, 1, 2), at(1024, 3, 2)}, false, 0},
		"only the first":     {[]trace.Request{at(600, 1, 2), at(1000, 1, 3)}, true, 0},
		"more than that":     {[]trace.Request{at(600, 1, 2), at(1000, 1, 2)}, true, 600. / 1600},
		"no request":         {},
	} {
		if got := reusable(c.requests, c.spread); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestMetric checks medians, ratios by round, and missing values.
func TestMetric(t *testing.T) {
	m := metric("x", "x", [2][]float64{{1, 2, 4}, {2, 6, 4}})
	if m.Sides[0].Median != 2 || m.Sides[1].Median != 4 || m.Ratio.Median != 2 || m.Ratio.Low != 1 ||
		m.Ratio.High != 3 {
		t.Errorf("%+v, %+v", m.Sides, m.Ratio)
	}
	if m := metric("x", "x", [2][]float64{{1, math.NaN()}, {1, 1}}); m.Sides != nil || m.Ratio != nil {
		t.Errorf("%+v", m)
	}
	if m := metric("x", "x", [2][]float64{{0, 1}, {1, 1}}); m.Sides == nil || m.Ratio != nil {
		t.Errorf("%+v", m)
	}
}

// TestARouterThatListsNothing checks that a router that never answers ends the comparison.
func TestARouterThatListsNothing(t *testing.T) {
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		<-r.Context().Done()
	}))
	defer silent.Close()
	r := runner{Config: Config{Replay: replay.Config{Timeout: 20 * time.Millisecond}}}
	if err := r.chooseModel(t.Context(), &Site{URL: silent.URL}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}
