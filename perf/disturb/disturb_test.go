package disturb

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
)

func TestSpread(t *testing.T) {
	var all []trace.Request
	for _, at := range []int64{0, 0, 0, 2999, 3001, 6000, 12000} {
		all = append(all, trace.Request{Timestamp: at})
	}
	spread(all)
	var got []int64
	for _, q := range all {
		got = append(got, q.Timestamp)
	}
	if want := []int64{0, 1000, 2000, 3000, 4500, 6000, 12000}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestSource(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	line := `{"timestamp":3000,"input_length":3,"output_length":1,"hash_ids":[1]}` + "\n"
	long := `{"timestamp":3000,"input_length":4,"output_length":1,"hash_ids":[1]}` + "\n"
	if err := os.WriteFile(from, []byte(line+long+line+line), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := source(from, 2, 3)
	if err != nil {
		t.Fatal(err)
	}
	if err := writeTrace(to, all); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(to)
	if err != nil || strings.Count(string(text), `"input_length":3`) != 2 || strings.Count(string(text), "\n") != 2 ||
		!strings.Contains(string(text), `"timestamp":4500`) {
		t.Errorf("%v: %s", err, text)
	}
	if err := os.WriteFile(from, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := source(from, 2, 3); err == nil {
		t.Error("a bad trace was taken")
	}
	if all, err := source("", 50, 10000); err != nil || len(all) != 50 {
		t.Errorf("%d of the generator, %v", len(all), err)
	}
}

func TestMetric(t *testing.T) {
	text := []byte("# HELP a b\na{x=\"1\",y=\"2\"} 3\na{x=\"2\"} 4.5\nab{x=\"1\"} 8\na 1\n")
	if got := metric(text, "a"); got != 8.5 {
		t.Errorf("got %v", got)
	}
}

func TestCheck(t *testing.T) {
	if err := (Config{}).Check(); err != nil {
		t.Error(err)
	}
	for want, c := range map[string]Config{
		`mode "x": must be some of undisturbed, off, suspicion, on`: {Modes: []string{"x"}},
		"2 nodes: must be 3 to 32":                                  {Nodes: 2},
		"loss 1.5: must be above":                                   {Loss: 1.5},
		"-1 rounds":                                                 {Rounds: -1},
	} {
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestMarkdown(t *testing.T) {
	r := Report{Config: Config{Trace: "x"}.withDefaults(), Results: map[string][]Result{}}
	for mode, p99 := range map[string][]float64{"off": {2, 4}, "on": {1, 1}} {
		for _, v := range p99 {
			played := replay.Result{TTFT: replay.Times{P99: v}, Failures: map[string]int{"timeout": 2}}
			r.Results[mode] = append(r.Results[mode], Result{Mode: mode, Replay: played})
		}
	}
	text := r.Markdown("command")
	for _, want := range []string{
		"    command\n", "`" + DefaultPolicy + "`",
		"| on | 0.00 (0.00–0.00) | 0.00 (0.00–0.00) | 1000 (1000–1000) |", "| 2.00 (2.00–2.00) |",
		"| 0.38 (0.25–0.50) |\n", "| undisturbed | - |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
