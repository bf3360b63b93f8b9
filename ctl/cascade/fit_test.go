package cascade

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func ctl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return ctltest.Run(t, Command, nil, args...)
}

func TestMain(m *testing.M) { ctltest.Main(m) }

func file(t *testing.T, lines ...string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "answers.jsonl")
	if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// four are answers of which the small model's less confident half is wrong.
var four = []string{
	`{"confidence":-0.1,"small_right":true,"large_right":true}`,
	`{"logprobs":[-0.3,-0.5],"small_right":true,"large_right":true}`, ``,
	`{"confidence":-0.8,"small_right":false,"large_right":true}`,
	`{"confidence":-0.8,"small_right":false,"large_right":false,"small_cost":2,"dropped_cost":1,"large_cost":20}`,
}

// TestFit checks the curve and the choice for answers that can be counted by hand.
func TestFit(t *testing.T) {
	out, err := ctl(t, "cascade", "fit", file(t, four...), "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var f fitted
	if err := json.Unmarshal([]byte(out), &f); err != nil {
		t.Fatal(err)
	}
	want := []Point{
		{-100, 0, 5. / 4, 5. / 50, 0.5}, {-0.6, 0.5, 34. / 4, 34. / 50, 0.75},
		{-0.25, 0.75, 44. / 4, 44. / 50, 0.75}, {0, 1, 54. / 4, 54. / 50, 0.75},
	}
	for i, p := range f.Curve {
		if i >= len(want) || far(p.Threshold, want[i].Threshold) || far(p.Escalated, want[i].Escalated) ||
			far(p.Cost, want[i].Cost) || far(p.Relative, want[i].Relative) || far(p.Quality, want[i].Quality) {
			t.Errorf("point %d: %+v", i, p)
		}
	}
	if f.Records != 4 || f.Best == nil || far(f.Best.Threshold, -0.6) || far(f.Large.Quality, 0.75) ||
		far(f.Large.Cost, 12.5) {
		t.Errorf("%+v", f)
	}
	out, err = ctl(t, "cascade", "fit", file(t, four...))
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "THRESHOLD", "none", "large alone",
		"confidence_threshold = -0.6: 68.0 % of the cost of the large model alone, quality 75.0 % against 75.0 % (4 records)")
	if out, err = ctl(t, "cascade", "fit", file(t, four...), "--within", "0.3"); err != nil ||
		!strings.Contains(out, "confidence_threshold = -100: 10.0 %") {
		t.Errorf("%s, %v", out, err)
	}
}

func far(a, b float64) bool { return math.Abs(a-b) > 1e-9 }

// TestFitMeasures checks that the flags of the measure count.
func TestFitMeasures(t *testing.T) {
	name := file(t, `{"logprobs":[-1,-3,-2],"small_right":true,"large_right":true}`,
		`{"logprobs":[-4,-4,0],"small_right":false,"large_right":true}`)
	for flags, want := range map[string]string{
		"": "-2.333", "--tokens 2": "-3", "--measure quantile --quantile 1": "-0.5",
	} {
		out, err := ctl(t, append([]string{"cascade", "fit", name}, strings.Fields(flags)...)...)
		if err != nil || !strings.Contains(out, "\n"+want+" ") {
			t.Errorf("%s: want %s in\n%s, %v", flags, want, out, err)
		}
	}
}

func TestFitRefuses(t *testing.T) {
	for line, want := range map[string]string{
		``: "there are no records", `{`: "line 1", `{"confidence":-1}`: "small_right and large_right are needed",
		`{"small_right":true,"large_right":true}`:                                 "logprobs or confidence is needed",
		`{"confidence":1,"small_right":true,"large_right":true}`:                  "confidence 1 is not in -100..0",
		`{"confidence":-1,"logprobs":[-1],"small_right":true,"large_right":true}`: "both given",
		`{"confidence":-1,"small_right":true,"large_right":true,"small_cost":-1}`: "a cost is negative",
		`{"confidence":-1,"right":true}`:                                          "right",
	} {
		if _, err := ctl(t, "cascade", "fit", file(t, line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	for _, flags := range [][]string{
		{"--measure", "median"}, {"--quantile", "2"}, {"--tokens", "-1"}, {"--within", "7"},
	} {
		if _, err := ctl(t, append([]string{"cascade", "fit", file(t, four...)}, flags...)...); err == nil {
			t.Errorf("%v is taken", flags)
		}
	}
}

// TestThinned checks that the table has a row for each share.
func TestThinned(t *testing.T) {
	var all []answer
	for i := range 1000 {
		all = append(all, answer{confidence: -0.1 - float64(i)/100, smallCost: 1, largeCost: 1, droppedCost: 1})
	}
	got := thinned(curve(all), rows)
	if len(got) != rows || fmt.Sprintf("%.2f", got[1].Escalated) != "0.05" || got[rows-1].Escalated != 1 {
		t.Errorf("%d rows: %+v", len(got), got)
	}
}
