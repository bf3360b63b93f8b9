package compare

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/perf/instant"
)

// engineAt makes the test binary a contestant: an engine at this address.
const engineAt = "TEST_COMPARE_ENGINE"

func TestMain(m *testing.M) {
	if addr := os.Getenv(engineAt); addr != "" {
		if _, err := instant.Start(instant.Config{Listen: addr}); err != nil {
			os.Exit(1)
		}
		select {} // until it is killed
	}
	goleak.VerifyTestMain(m)
}

func self(name, more string) Contestant {
	return Contestant{Name: name, Program: os.Args[0], Health: "/health", Version: []string{"/bin/echo", "v1"},
		Processes: []ProcessRow{{Command: []string{os.Args[0]},
			Env: []string{engineAt + "=127.0.0.1:{{port `front`}}" + more}}}}
}

// runScenarios are the scenarios of TestRun. A quick run leaves out the last scenario.
var runScenarios = []Scenario{
	{Name: "closed", Title: "Closed", Kind: "closed", Clients: 2, PromptBytes: 500, Tokens: 1,
		Quick: 0.1, Show: []string{"cpu_us", "p50_ms"}},
	{Name: "streams", Title: "Streams", Kind: "streams", Sweep: "streams", Values: []float64{4, 8}, Rate: 100,
		PromptBytes: 500, Repetitions: 1, Quick: 0.1, Show: []string{"harness_us", "p99_ms"},
		Plot: Plot{Figure: "p99_ms", X: "streams", Y: "ms"}, Only: []string{"one", "reference"}},
	{Name: "leave", Title: "Leave", Kind: "leave", PromptBytes: 500, Repetitions: 1,
		Quick: 0.1, Show: []string{"silent_stream_ms"}, Only: []string{"direct"}},
	{Name: "slow", Title: "Slow", Kind: "slow_reader", Streams: 4, Rate: 50, PromptBytes: 500, Repetitions: 1,
		Quick: 0.2, Show: []string{"growth_mib", "others_p99_ms"}, Only: []string{"one"}},
	{Name: "steady", Title: "Steady", Kind: "steady", Clients: 2, Requests: 500, PromptBytes: 500, Repetitions: 1,
		Quick: 20, Show: []string{"most_mib"}, Only: []string{"one"}},
	{Name: "idle", Title: "Idle", Kind: "idle", Clients: 50, PromptBytes: 500, Repetitions: 1,
		Quick: 0.1, Show: []string{"rss_mib"}, Only: []string{"direct", "one"}},
	{Name: "open", Title: "Open", Kind: "open_streams", Streams: 50, Rate: 10, PromptBytes: 500, Repetitions: 1,
		Quick: 0.1, Show: []string{"rss_mib"}, Only: []string{"one"}},
	{Name: "long", Kind: "closed", Full: 100, Show: []string{"cpu_us"}},
}

func TestRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	reference, broken := self("reference", ""), self("broken", "x")
	reference.Reference = true
	contestants := []Contestant{
		{Name: "direct", Note: "nothing"}, self("one", ""), reference, broken,
		{Name: "absent", Program: "{{.Bin}}/no-such-program", Install: "make absent"},
	}
	var progress strings.Builder
	report, err := run(context.Background(), Config{Root: t.TempDir(), Repetitions: 2, Progress: &progress},
		contestants, runScenarios)
	if err != nil {
		t.Fatal(err)
	}
	text := report.Markdown("the command")
	for _, want := range []string{
		"- absent: **missing**: not installed: make absent", "- one: v1", "| absent | missing | missing | missing |",
		"÷ reference", "| reference | ", "1.00 (1.00–1.00)", "| 8 | one |", "](plots/streams.svg)",
		"- broken: failed: broken: 0-0: ended before it was healthy", "### Leave (`leave`)", "| broken | -, 0 of 2 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "long") || !strings.Contains(progress.String(), "MISSING: absent") {
		t.Errorf("%s\n%s", text, progress.String())
	}
	if err := report.Err(); err == nil || err.Error() != "measurements failed: broken in closed" {
		t.Errorf("what failed: %v", err)
	}
	if shown := (&Result{Scenario: Scenario{Show: []string{"cpu_us", "added_p99_ms"}},
		Points: []Point{{Rows: []Row{{Contestant: "one"}}}}}).shown(); len(shown) != 1 {
		t.Errorf("without direct %q are shown", shown)
	}
	closed := report.Results[0].Points[0].Rows
	if v := closed[1].values("per_second"); len(v) != 2 || !(v[0] > 10) || closed[1].Notes != nil {
		t.Errorf("one: %v, %v", v, closed[1].Notes)
	}
	if v := closed[0].values("cpu_us"); !math.IsNaN(v[0]) {
		t.Errorf("direct has no CPU time of its own: %v", v)
	}
	if ms := report.Results[2].Points[0].Rows[0].values("silent_stream_ms")[0]; !(ms > 0 && ms < 1000) {
		t.Errorf("an engine saw its client leave after %v ms", ms)
	}
	if v := closed[1].values("added_p50_ms"); math.IsNaN(v[0]) || closed[0].values("added_p50_ms")[0] != 0 {
		t.Errorf("added to direct: %v", v)
	}
	for i, figure := range map[int]string{3: "others_p99_ms", 4: "most_mib", 5: "rss_mib", 6: "rss_mib"} {
		rows := report.Results[i].Points[0].Rows
		if len(rows) != 1 || !(rows[0].values(figure)[0] > 0) {
			t.Errorf("%s: %+v", report.Results[i].Name, rows)
		}
	}
}

// TestHeld finds a number of streams that a contestant relays in time. After a single pause of the
// machine TestHeld may find no number.
func TestHeld(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	scenario := Scenario{Name: "held", Title: "Held", Kind: "held", Streams: 4, Rate: 50, PromptBytes: 500,
		Repetitions: 1, Quick: 0.1, Show: []string{"streams"}}
	var last string
	for range 20 {
		report, err := run(context.Background(), Config{Root: t.TempDir(), Repetitions: 1, Progress: io.Discard},
			[]Contestant{self("one", "")}, []Scenario{scenario})
		if err != nil {
			t.Fatal(err)
		}
		rows := report.Results[0].Points[0].Rows
		if last = fmt.Sprintf("%+v", rows); len(rows) == 1 && rows[0].Failed == 0 && rows[0].values("streams")[0] > 0 {
			return
		}
	}
	t.Error(last)
}

// TestPlots: a plot has a line for each contestant, without the points at which it was late.
func TestPlots(t *testing.T) {
	row := func(name string, ms, behind float64) Row {
		return Row{Contestant: name, Figures: []Figures{{"p99_ms": ms, "behind": behind}}}
	}
	report := &Report{Results: []Result{
		{Scenario: Scenario{Name: "closed", Title: "Closed"}},
		{Scenario: Scenario{Name: "streams", Title: "Streams & more",
			Plot: Plot{Figure: "p99_ms", X: "streams", Y: "ms"}}, Points: []Point{
			{Value: 4, Rows: []Row{row("one", 1, 0), row("reference", 2, 0), row("slow", 9, 1)}},
			{Value: 8, Rows: []Row{row("one", 3, 1), row("reference", 4, 0), row("broken", math.NaN(), 0)}},
		}},
	}}
	lines := report.Results[1].lines()
	if len(lines) != 2 || !slices.Equal(lines[0].x, []float64{4}) || !slices.Equal(lines[1].y, []float64{2, 4}) {
		t.Errorf("%+v", lines)
	}
	files, err := report.Plots(t.TempDir())
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	wellFormed(t, files[0], len(lines))
}

func wellFormed(t *testing.T, file string, want int) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for d := xml.NewDecoder(f); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	if lines != want {
		t.Errorf("%d lines drawn, want %d", lines, want)
	}
}

// TestTables: every template of the tables renders, and uses only known names.
func TestTables(t *testing.T) {
	contestants, scenarios := Contestants(), Scenarios()
	references := map[string]int{}
	for i := range contestants {
		c := &contestants[i]
		if c.Reference {
			references[c.Group]++
		}
		r := &Running{Contestant: c, ports: map[string]int{}, spare: make([]int, maxPorts)}
		v := view{Engines: []string{"a:1", "b:2"}, Engine: "a:1", I: "0"}
		for _, p := range c.Processes {
			for name, text := range p.Files {
				if _, err := r.renderAll([]string{name, text}, v); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			}
			for _, texts := range [][]string{p.Command, p.Each, p.Env} {
				if _, err := r.renderAll(texts, v); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			}
		}
		if _, ok := r.ports["front"]; !ok && c.Program != "" {
			t.Errorf("%s has no port front", c.Name)
		}
	}
	for _, s := range scenarios {
		if references[s.Group] != 1 {
			t.Errorf("%s: group %q has %d references", s.Name, s.Group, references[s.Group])
		}
		if s.Quick == 0 && s.Full == 0 {
			t.Errorf("%s is part of no form", s.Name)
		}
		if kinds[s.Kind] == nil || len(s.Show) == 0 || !slices.Contains([]string{"", "streams", "rate"}, s.Sweep) {
			t.Errorf("%s: kind %q, sweep %q or show is not known", s.Name, s.Kind, s.Sweep)
		}
	}
}

func TestSpread(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for want, got := range map[string]Spread{
		"-": SpreadOf([]float64{nan}), "2.00": SpreadOf([]float64{2}),
		"3.00 (1.00–10.0)": SpreadOf([]float64{10, 1, 3, nan}),
		"2.00 (1.00–3.00)": SpreadOf([]float64{3, 1}), "never": SpreadOf([]float64{inf}),
		"0.50 (0.25–2.00)": Ratios([]float64{1, 2, 8}, []float64{4, 4, 4}),
		"0.0012":           SpreadOf([]float64{0.00123}), "123": SpreadOf([]float64{123.4}),
	} {
		if got.String() != want {
			t.Errorf("%+v is %q, want %q", got, got, want)
		}
	}
	if r := Ratios([]float64{1, nan, 3}, []float64{2, 2, 0}); r.N != 1 || r.Median != 0.5 {
		t.Errorf("pairs without a partner: %+v", r)
	}
}

func TestFiguresAsJSON(t *testing.T) {
	b, err := json.Marshal(Figures{"a": math.NaN(), "b": math.Inf(1), "c": 1.5})
	if err != nil || string(b) != `{"a":null,"b":"never","c":1.5}` {
		t.Errorf("%s, %v", b, err)
	}
}

func TestWriteSection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "REPORTS.md")
	if err := os.WriteFile(path, []byte("a\n<!-- x: begin -->\nold\n<!-- x: end -->\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteSection(path, "x", "new\n"); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(path)
	if string(text) != "a\n<!-- x: begin -->\n\nnew\n\n<!-- x: end -->\nb\n" {
		t.Errorf("%q", text)
	}
	if err := WriteSection(path, "y", "new"); err == nil {
		t.Error("a section that is not there was written")
	}
}

// TestInterrupted: earlier measurements are kept, and no process is left.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := writerFunc(func(b []byte) { cancel() })
	scenarios := []Scenario{
		{Name: "first", Title: "First", Kind: "closed", Clients: 2, PromptBytes: 500, Tokens: 1, Quick: 0.1, Show: []string{"p50_ms"}},
		{Name: "endless", Title: "Endless", Kind: "closed", Clients: 2, PromptBytes: 500, Tokens: 1, Quick: 3600, Show: []string{"p50_ms"}},
		{Name: "never", Title: "Never", Kind: "closed", Clients: 2, PromptBytes: 500, Tokens: 1, Quick: 3600, Show: []string{"p50_ms"}},
	}
	report, err := run(ctx, Config{Root: t.TempDir(), Progress: done}, []Contestant{self("one", "")}, scenarios)
	if !errors.Is(err, context.Canceled) || report == nil {
		t.Fatal(report, err)
	}
	if text := report.Markdown("command"); !strings.Contains(text, "**Interrupted**") ||
		!strings.Contains(text, "First") || strings.Contains(text, "Never") {
		t.Error(text)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }

const topText = `File: cgn-router
Type: cpu
Showing nodes accounting for 1.20s, 40.5% of 2.96s total
Dropped 10 nodes (cum <= 0.01s)
      flat  flat%   sum%        cum   cum%
     1.04s 35.1% 35.1%      1.04s 35.1%  internal/runtime/syscall/linux.Syscall6
     0.16s  5.4% 40.5%      0.20s  6.8%  sync.(*Mutex).Lock (inline)
`

func TestProfileText(t *testing.T) {
	share, err := parseShare([]byte(topText))
	if err != nil || share != 40.5 {
		t.Error(share, err)
	}
	if _, err := parseShare([]byte("no samples")); err == nil {
		t.Error("a share was read from nothing")
	}
	top := parseTop([]byte(topText))
	if len(top) != 2 || top[0] != (Function{"internal/runtime/syscall/linux.Syscall6", 35.1, 35.1}) ||
		top[1] != (Function{"sync.(*Mutex).Lock", 5.4, 6.8}) {
		t.Errorf("%+v", top)
	}
	s := Result{Points: []Point{{Rows: []Row{{Contestant: "ours", Top: top}}}}}
	var b strings.Builder
	s.writeTop(&b)
	if !strings.Contains(b.String(), "| `sync.(*Mutex).Lock` | 5.40 | 6.80 |") {
		t.Error(b.String())
	}
}
