package peers

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/program"
	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestMain makes the test binary a router, if that is its name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "cgn-router" {
		program.Main("cgn-router", runRouter)
		return
	}
	goleak.VerifyTestMain(m)
}

func runRouter(args, env []string, out, errOut io.Writer) error {
	var c router.Config
	log, err := program.Load(&c, config.Options{Program: "cgn-router", Version: "v1", Args: args, Env: env, Out: out},
		errOut, &c.Log.Level, &c.Log.Format)
	if log == nil {
		return err
	}
	c.Logger = log
	r, err := router.New(c)
	if err != nil {
		return err
	}
	signals := lifecycle.Listen(context.Background(), func() {})
	defer signals.Close()
	return r.Run(signals.Drain(), signals.Force())
}

// simulated starts simulated engines in this process.
func simulated(t *testing.T, n int) func(context.Context, string, bool) (*Fleet, error) {
	return func(context.Context, string, bool) (*Fleet, error) {
		f := &Fleet{}
		var engines []*engine.Engine
		for range n {
			e, err := engine.New(engine.Config{Models: []string{modelName}, CacheBlocks: 1 << 16, Speed: 20})
			if err != nil {
				return nil, err
			}
			engines = append(engines, e)
			f.Addrs = append(f.Addrs, e.Addr())
		}
		f.Requests = func(context.Context) (counts []float64, err error) {
			for _, e := range engines {
				counts = append(counts, float64(e.Stats().Completed))
			}
			return counts, nil
		}
		f.Stop = func() {
			for _, e := range engines {
				e.Close()
			}
		}
		return f, nil
	}
}

// newBench returns a small comparison before simulated engines. Its router is this test binary.
func newBench(t *testing.T) *bench {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	cfg := Default()
	cfg.Root, cfg.Progress = t.TempDir(), io.Discard
	cfg.Trace, cfg.TraceName = trace.Generator{Requests: 120}.Source(), "generated"
	cfg.Windows, cfg.Requests, cfg.Rates, cfg.Loads, cfg.Repeats, cfg.Bursts = 2, 30, []float64{100}, []int{90}, 1, 1
	cfg.MostCPU, cfg.MostLate = 2, time.Hour // other tests run on this host
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(cfg.Root, "bin"), 0o755),
		os.Symlink(self, filepath.Join(cfg.Root, "bin", "cgn-router"))); err != nil {
		t.Fatal(err)
	}
	return &bench{Config: cfg, start: simulated(t, 4)}
}

// TestCompare runs our router in two modes, with fresh engines and routers each time, and leaves
// out what is not installed.
func TestCompare(t *testing.T) {
	b := newBench(t)
	report, err := b.compare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 * (2 + 1); len(report.Runs) != want {
		t.Fatalf("%d runs, want %d", len(report.Runs), want)
	}
	for i := range report.Runs {
		checkRun(t, &report.Runs[i])
	}
	if a, b := report.Runs[0].Contestant, report.Runs[2].Contestant; a == b {
		t.Errorf("%s begins two turns", a)
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	text := report.Markdown("the command")
	for _, want := range []string{"- dynamo: **missing**: not installed: perf/compare/install.sh dynamo",
		"- ours: cgn-router v1;",
		"| 90 % | 2 | ours | 1 |", "| burst |  | round robin | 1 |", "| 90 % | round robin | 2 |", "the command",
		"holds 100.0, 100.0 requests/s in the windows, by --rate"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "Void") || strings.Contains(text, "Interrupted") {
		t.Error(text)
	}
}

// checkRun checks a run of TestCompare.
func checkRun(t *testing.T, r *Run) {
	n := 30
	if r.Window == 0 {
		n = burstRequests
	}
	q := r.Replay
	if r.Void != "" || q.Requests != n || q.Failed() != 0 || q.Uncounted != 0 || r.Busiest < 1 {
		t.Errorf("%s", r.line())
	}
	if r.Contestant == roundRobin && r.Busiest > 1.2 || r.Window == 0 && q.HitRatio < 0.5 {
		t.Errorf("%s", r.line())
	}
}

// TestVoidRunsAreRepeatedOnce: a void run is in the report, but in no figure.
func TestVoidRunsAreRepeatedOnce(t *testing.T) {
	b := newBench(t)
	b.Windows, b.Bursts, b.Contestants, b.MostCPU = 1, 0, []string{ours}, -1
	report, err := b.compare(t.Context())
	if err != nil || len(report.Runs) != 2 {
		t.Fatal(len(report.Runs), err)
	}
	text := report.Markdown("the command")
	if strings.Contains(text, "| 90 % |") || strings.Count(text, "\n- 90 %, window 1, repeat 1: ours: ") != 2 {
		t.Error(text)
	}
}

// TestFailedRuns: fleets that do not start are void runs too.
func TestFailedRuns(t *testing.T) {
	b := newBench(t)
	b.Windows, b.Contestants = 0, []string{ours}
	b.start = func(context.Context, string, bool) (*Fleet, error) { return nil, errors.New("no engine") }
	report, err := b.compare(t.Context())
	if err != nil || len(report.Runs) != 2 || report.Runs[1].Void != "failed: no engine" {
		t.Error(report.Runs, err)
	}
	if len(report.Comparisons()) != 0 || !strings.Contains(report.Markdown(""), "VOID: failed: no engine") {
		t.Error(report.Markdown(""))
	}
}

// TestInterrupted: runs before the interruption are reported, and no process is left.
func TestInterrupted(t *testing.T) {
	b := newBench(t)
	ctx, cancel := context.WithCancel(t.Context())
	b.Progress = writer(func(text []byte) {
		if strings.HasPrefix(string(text), "[1/") {
			cancel()
		}
	})
	report, err := b.compare(ctx)
	if !errors.Is(err, context.Canceled) || len(report.Runs) != 1 {
		t.Fatal(report.Runs, err)
	}
	if text := report.Markdown(""); !strings.Contains(text, "**Interrupted**") {
		t.Error(text)
	}
}

type writer func(text []byte)

func (w writer) Write(text []byte) (int, error) { w(text); return len(text), nil }

// TestRateIsSearched: without --rate the rate that round robin holds is searched in each window,
// the second search begins at the first one's rate, and --rate-only ends after them.
func TestRateIsSearched(t *testing.T) {
	b := newBench(t)
	b.Rates, b.RateOnly = nil, true
	limits := map[*Workload]float64{}
	b.play = func(_ context.Context, c *contestant, w *Workload, rate float64) (*Run, error) {
		if c.name != roundRobin {
			t.Errorf("%s is played", c.name)
		}
		if limits[w] == 0 { // the windows come in order
			limits[w] = []float64{90, 60}[len(limits)]
		}
		r := &Run{Replay: &replay.Result{Requests: 300}}
		if rate > limits[w] {
			r.Replay.InFlight[2] = growth*100 + 1
		}
		return r, nil
	}
	report, err := b.compare(t.Context())
	if err != nil || len(report.Rates) != 2 || len(report.Runs) != 0 {
		t.Fatal(report, err)
	}
	began := false
	for i, limit := range []float64{90, 60} {
		if got := report.Rates[i]; got > limit || got < limit/closeEnough {
			t.Errorf("window %d: %v, want up to %v", i+1, got, limit)
		}
	}
	for _, p := range report.Probes {
		if p.Held != (p.PerSecond <= []float64{90, 60}[p.Window-1]) {
			t.Errorf("%+v", p)
		}
		if p.Window == 2 && !began {
			if began = true; p.PerSecond != report.Rates[0] {
				t.Errorf("window 2 begins at %v, not at %v", p.PerSecond, report.Rates[0])
			}
		}
	}
	text := report.Markdown("")
	for _, want := range []string{"by the search (1: 40.0, ", " is too much, "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// TestSearchOnABusyHost: a step that is void or fails is repeated once, and then ends the search
// with an error that names the window.
func TestSearchOnABusyHost(t *testing.T) {
	for _, c := range []struct {
		bad  int // plays that are void or fail
		void string
		err  error
		want string
	}{
		{bad: 1, void: "busy"},
		{bad: 1, err: errors.New("no engine")},
		{bad: 2, void: "busy", want: "in window 1: two runs at 40.0 requests/s are void: busy"},
		{bad: 2, err: errors.New("no engine"), want: "in window 1: no engine"},
	} {
		plays := 0
		b := &bench{Config: Config{Progress: io.Discard}, windows: []*Workload{{}}, report: &Report{}}
		b.play = func(_ context.Context, _ *contestant, _ *Workload, rate float64) (*Run, error) {
			if plays++; plays <= c.bad {
				return &Run{Void: c.void, Replay: &replay.Result{}}, c.err
			}
			r := &Run{Replay: &replay.Result{Requests: 300}}
			if rate > firstRate {
				r.Replay.InFlight[2] = 100
			}
			return r, nil
		}
		rates, err := b.findRates(t.Context())
		switch {
		case c.want == "" && (err != nil || len(rates) != 1 || rates[0] != firstRate):
			t.Errorf("%+v: %v, %v", c, rates, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || plays != 2):
			t.Errorf("%+v: %v after %d plays", c, err, plays)
		}
	}
}

// TestContestants: each mode and KV events add a contestant, and our router has the right command.
func TestContestants(t *testing.T) {
	all := contestants([]string{"cost"}, true)
	command := func(name string, f *Fleet) []string {
		i := slices.IndexFunc(all, func(c contestant) bool { return c.name == name })
		row := all[i].row(&bench{model: "/model"}, f)
		return append(row.Processes[0].Command, row.Processes[0].Files["router.toml"])
	}
	f := &Fleet{Addrs: []string{"a:1"}, Events: []string{"tcp://e:1"}, Replays: []string{"tcp://r:1"}, Store: "/store"}
	if got := command("ours", f); slices.Contains(got, "--mode") || len(all) != 7 {
		t.Errorf("%q", got)
	}
	for name, want := range map[string]string{
		"ours, cost":  "--mode cost",
		"round robin": "--mode round_robin",
		"ours, KV events": "--backend http://a:1,kv-events=tcp://e:1,kv-replay=tcp://r:1 " +
			"[[model]]\nname = \"mock\"\ntokenizer = \"/model\"",
		"dynamo": "--router-mode kv",
		"smg":    "--policy cache_aware",
	} {
		if got := strings.Join(command(name, f), " "); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
