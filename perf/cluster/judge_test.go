package cluster

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

// small returns kinds of traffic with few requests.
func small(t *testing.T, requests int, names ...string) []Traffic {
	t.Helper()
	all, err := TrafficsNamed(names)
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i].Requests = requests
	}
	return all
}

func TestTraffics(t *testing.T) {
	for _, kind := range small(t, 400, "all") {
		w, cfg, err := kind.At(7, 5)
		if err != nil {
			t.Fatal(err)
		}
		rate := float64(w.Len()) / w.Span().Seconds()
		if w.Len() != 400 || rate < 3 || rate > 12 || w.Longest() > cfg.Engine.CacheBlocks {
			t.Errorf("%s: %d requests at %.1f a second, up to %d blocks", kind.Name, w.Len(), rate, w.Longest())
		}
		bounded, named := 0, 0
		for i := range w.requests {
			r := &w.requests[i]
			if r.maxTokens > 0 {
				bounded++
			}
			if r.session != nil {
				named++
			}
			if r.maxTokens > 0 && r.maxTokens < r.answer {
				t.Errorf("%s: at most %d tokens of %d", kind.Name, r.maxTokens, r.answer)
			}
		}
		if bounded < 150 || bounded > 250 || named < 80 || named > 320 {
			t.Errorf("%s: %d bounds and %d sessions", kind.Name, bounded, named)
		}
		again, _, _ := kind.At(7, 5)
		other, _, _ := kind.At(8, 5)
		if !reflect.DeepEqual(again, w) || reflect.DeepEqual(other, w) {
			t.Errorf("%s: seeds do not tell workloads apart", kind.Name)
		}
		if uneven := kind.Name == "nodes"; (cfg.Speeds != nil) != uneven || len(cfg.Slow) > 0 != uneven {
			t.Errorf("%s: speeds %v, slow %v", kind.Name, cfg.Speeds, cfg.Slow)
		}
	}
	apart, err := TrafficsNamed([]string{"recovery"})
	if err != nil || len(apart) != 1 {
		t.Fatal(apart, err)
	}
	_, cfg, err := apart[0].At(7, 1.4)
	if s := cfg.Slow; err != nil || cfg.Nodes != 3 || cfg.Speeds != nil || len(s) != 1 ||
		s[0].To-s[0].From != 3*time.Minute {
		t.Errorf("recovery: %+v, %v", cfg, err)
	}
	if all := small(t, 1, "all"); len(all) != 6 || all[5].Name != "nodes" {
		t.Errorf("all: %+v", all)
	}
	if _, err := TrafficsNamed([]string{"chat", "chats"}); err == nil || !strings.Contains(err.Error(), `"chats"`) {
		t.Errorf("an unknown kind: %v", err)
	}
}

// TestCapacity: round robin holds the rate that is found, and not a tenth more.
func TestCapacity(t *testing.T) {
	kind := small(t, 2000, "questions")[0]
	kind.Fleet.Nodes = 2
	rate, err := kind.Capacity()
	if err != nil {
		t.Fatal(err)
	}
	kind.Requests *= 3
	grown := func(rate float64) float64 {
		w, cfg, err := kind.At(0, rate)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Mode = "round_robin"
		return run(t, w, cfg).growth()
	}
	if at, above := grown(rate), grown(1.1*rate); at > mostGrowth || above <= mostGrowth {
		t.Errorf("at %.1f a second the queue grows by %.3f of the arrivals, at a tenth more by %.3f", rate, at, above)
	}
	kind.Fleet.Engine.CacheBlocks = 1
	if _, err := kind.Capacity(); !errors.Is(err, ErrCache) {
		t.Errorf("with too small caches: %v", err)
	}
}

func TestWindow(t *testing.T) {
	w := generated(t, 100)
	sum, tokens := 0, 0
	for i := range 3 {
		part, err := w.Window(i, 3)
		if err != nil {
			t.Fatal(err)
		}
		sum, tokens = sum+part.Len(), tokens+part.Tokens()
		if part.requests[0].at != 0 || part.Distinct() == 0 || part.Distinct() >= w.Distinct() {
			t.Errorf("part %d begins at %v and has %d blocks", i, part.requests[0].at, part.Distinct())
		}
	}
	if sum != 100 || tokens != w.Tokens() {
		t.Errorf("%d requests and %d tokens in all", sum, tokens)
	}
	for _, bad := range [][2]int{{3, 3}, {-1, 3}, {0, 0}, {0, 1000}} {
		if _, err := w.Window(bad[0], bad[1]); err == nil {
			t.Errorf("window %v was taken", bad)
		}
	}
}

func TestDifference(t *testing.T) {
	// The differences are -10, -12, -8: mean -10, standard error 2/sqrt(3), t of 2 degrees 4.303.
	d := difference([]float64{90, 88, 92}, []float64{100, 100, 100})
	if want := 4.303 * 2 / math.Sqrt(3); d.Verdict != Ahead || d.Percent != -10 || math.Abs(d.Margin-want) > 1e-9 {
		t.Errorf("%+v, want a margin of %g", d, want)
	}
	for verdict, own := range map[Verdict][]float64{
		Behind: {110, 112, 108}, Equal: {100, 110, 95}, Ahead: {99, 99, 99},
	} {
		if d := difference(own, []float64{100, 100, 100}); d.Verdict != verdict {
			t.Errorf("%v: %+v, want %s", own, d, verdict)
		}
	}
}

// TestJudge: a judgement is the same on any number of CPUs, and a mode that knows the caches does
// not compete.
func TestJudge(t *testing.T) {
	trial := Trial{
		Traffics: small(t, 300, "agents", "nodes"), Loads: []float64{0.6}, CurveLoads: []float64{0.3, 0.6}, Seeds: 3,
		FirstSeed: 50,
		Contestants: []Contestant{
			{Name: "score", Mode: "score"}, {Name: "random", Mode: "random"}, {Name: "exact", Mode: "score_exact"},
			{Name: "blind", Mode: "score", Policy: blind()},
		},
	}
	calls := 0
	trial.Progress = func(done, of int) {
		if calls++; done != calls || of != 2*2*3*4 {
			t.Errorf("progress %d of %d at call %d", done, of, calls)
		}
	}
	j, err := Judge(context.Background(), trial)
	if err != nil {
		t.Fatal(err)
	}
	trial.Progress, trial.CurveLoads = nil, nil
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if again, err := Judge(context.Background(), trial); err != nil || again.Markdown() != j.Markdown() ||
		again.Points != nil {
		t.Errorf("on one CPU, without curves: %v\n%s", err, again.Markdown())
	}
	if calls != 48 || len(j.Rows) != 8 || len(j.Points) != 16 || len(j.Summary) != 3 || len(j.Rates) != 2 {
		t.Fatalf("%d calls, %d rows, %d points, %d in the summary", calls, len(j.Rows), len(j.Points), len(j.Summary))
	}
	checkJudgement(t, j)
	dir := t.TempDir()
	names, err := j.Draw(filepath.Join(dir, "curves"))
	if err != nil || len(names) != 6 {
		t.Fatalf("%v: %v", names, err)
	}
	drawing, _ := os.ReadFile(filepath.Join(dir, "curves", "agents-ttft.svg"))
	if text := string(drawing); strings.Count(text, "<polyline") != 4 || !strings.Contains(text, "agents: mean TTFT") {
		t.Errorf("%s", text)
	}
}

// blind returns a policy that ignores prefixes.
func blind() *policy.Policy {
	p := *policy.Default()
	p.Score.Weights.KV = 0
	return &p
}

func checkJudgement(t *testing.T, j *Judgement) {
	t.Helper()
	score, random, exact, without := j.Rows[0], j.Rows[1], j.Rows[2], j.Rows[3]
	if score.Workload != "agents" || score.Mode != "score" || exact.Against != nil {
		t.Errorf("%+v, %+v", score, exact)
	}
	if d := score.Against[FigureTTFT]; d.Verdict != Ahead || d.Percent > -20 || d.Other == "exact" || d.Margin <= 0 {
		t.Errorf("score: %+v", d)
	}
	if d := random.Against[FigureTTFT]; d.Percent < 50 || d.Other != "score" {
		t.Errorf("random: %+v", d)
	}
	if without.Means[FigureHitRatio] >= score.Means[FigureHitRatio] {
		t.Errorf("hit ratios %v and, without prefixes, %v", score.Means, without.Means)
	}
	if s := j.Summary[0]; s.Mode != "score" || s.Figures != 6 || s.Near < 3 || s.Ahead+s.Equal+s.Behind != 6 {
		t.Errorf("%+v", s)
	}
	if _, has := score.Means[FigureSlowP90]; has {
		t.Error("agents have a slow node")
	}
	if j.Rows[4].Means[FigureSlowP90] <= 0 || j.Rows[4].Means[FigureUsualP90] <= 0 {
		t.Errorf("with a slow node: %v", j.Rows[4].Means)
	}
	text := j.Markdown()
	for _, want := range []string{"| agents | 0.6 | random | ", " ± ", "| nodes | 0.6 | blind | ",
		"TTFT p90 before a node was slower", "score: best or within 3 % of the best in ", "seeds 50 to 52"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, "expected and real") {
		t.Errorf("these modes expect no times:\n%s", text)
	}
}

// TestSummary: a mean near the best counts as near, and the worst is counted unless it is near.
func TestSummary(t *testing.T) {
	row := func(mode string, ms ...float64) *Row {
		r := &Row{Mode: mode}
		for _, v := range ms {
			r.results = append(r.results, &Result{TTFT: Times{Mean: v, P90: v}, E2E: Times{Mean: v}})
		}
		r.average()
		return r
	}
	j := &Judgement{Rows: []*Row{row("a", 100, 102), row("b", 101, 105), row("c", 120, 130)}}
	j.compare([]Contestant{{Name: "a", Mode: "score"}, {Name: "b", Mode: "cost"}, {Name: "c", Mode: "random"}})
	for i, want := range []Summary{
		{Mode: "a", Figures: 3, Near: 3, Equal: 3}, {Mode: "b", Figures: 3, Near: 3, Equal: 3},
		{Mode: "c", Figures: 3, Worst: 3, Equal: 3},
	} {
		if j.Summary[i] != want {
			t.Errorf("%+v, want %+v", j.Summary[i], want)
		}
	}
}

// TestRecoveredIsCompared: figures after all nodes were slower are compared where all rows have
// them, and the summary leaves them out.
func TestRecoveredIsCompared(t *testing.T) {
	row := func(mode string, ms float64, requests int) *Row {
		r := &Row{Mode: mode, Workload: "w"}
		for i := range 2 {
			after := Times{Count: requests, Mean: ms + float64(i)}
			r.results = append(r.results, &Result{Phases: Phases{After: Phase{after, after}}})
		}
		r.average()
		return r
	}
	j := &Judgement{Rows: []*Row{row("a", 100, 1), row("b", 200, 1), row("a", 100, 1), row("b", 0, 0)}}
	j.compare([]Contestant{{Name: "a", Mode: "score"}, {Name: "b", Mode: "cost"}})
	for _, figure := range []string{FigureAfterTTFT, FigureAfterE2E} {
		if d := j.Rows[0].Against[figure]; d.Verdict != Ahead || d.Other != "b" {
			t.Errorf("%s: %+v", figure, d)
		}
		if _, compared := j.Rows[2].Against[figure]; compared {
			t.Errorf("%s is compared with nothing", figure)
		}
	}
	if j.Summary[0].Figures != 6 {
		t.Errorf("%+v, want 3 figures of each group", j.Summary[0])
	}
	text := j.Markdown()
	if want := "After all nodes were slower"; !strings.Contains(text, want) || strings.Count(text, ", ahead) |") != 2 {
		t.Errorf("%q with two figures ahead is missing in\n%s", want, text)
	}
}

func TestJudgeStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	trial := Trial{Traffics: small(t, 200, "questions"), Loads: []float64{0.5}, Seeds: 40,
		Contestants: []Contestant{{Name: "random", Mode: "random"}}}
	trial.Progress = func(int, int) { cancel() }
	if _, err := Judge(ctx, trial); !errors.Is(err, context.Canceled) {
		t.Errorf("after an interrupt: %v", err)
	}
	if _, err := Judge(context.Background(), Trial{Seeds: 1}); err == nil {
		t.Error("one seed was taken")
	}
	short := Recorded("trace", alone(2, 0, 10, 20))
	if _, err := short.Capacity(); !errors.Is(err, ErrShort) {
		t.Errorf("three requests: %v", err)
	}
}

// TestRecorded: a trace keeps its order at every rate.
func TestRecorded(t *testing.T) {
	w := generated(t, 200)
	kind := Recorded("trace", w)
	own, cfg, err := kind.At(1, 40)
	if err != nil {
		t.Fatal(err)
	}
	if got := float64(w.Len()) / w.Span().Seconds() * cfg.Speed; math.Abs(got-40) > 0.01 || own.Len() != 200 {
		t.Errorf("%d requests at %.2f a second", own.Len(), got)
	}
	if w.requests[0].maxTokens != 0 || w.requests[1].maxTokens != 0 || w.requests[2].maxTokens != 0 {
		t.Error("the trace itself has changed")
	}
}

// TestExpectation: the error of an expected time is a share of the real time.
func TestExpectation(t *testing.T) {
	cfg := Config{Nodes: 1, Mode: "random", Engine: engine.Config{CacheBlocks: 8, PrefillTokensPerSecond: 1000}}
	s, err := newSimulation(alone(1, 0), cfg)
	if err != nil {
		t.Fatal(err)
	}
	s.arrive(&s.workload.requests[0])
	s.nodes[0].unbegun[0].expected = 1200 * time.Millisecond
	for len(s.events) > 0 {
		s.step()
	}
	s.result.finish(s)
	if e := s.result.TTFTError; math.Abs(e.P50-20) > 1e-6 || trace.BlockTokens != 512 {
		t.Errorf("an error of %g %%, want 20", e.P50)
	}
}
