package bench

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/cluster"
)

func TestBenchCluster(t *testing.T) {
	args := []string{"bench", "cluster", "--requests", "200", "--nodes", "3", "--cache-share", "3", "--speed", "2",
		"--modes", "score,random"}
	text, err := ctl(t, nil, args...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, text, "200 requests", "seed 1", "3 engines", "| score | 0.", "| random | 0.")
	again, err := ctl(t, nil, args...)
	if err != nil || again != text {
		t.Errorf("a second time it says (%v)\n%s", err, again)
	}
	text, err = ctl(t, nil, append(args, "-o", "json")...)
	var r cluster.Report
	if err != nil || json.Unmarshal([]byte(text), &r) != nil || len(r.Results) != 2 || r.Results[0].Answered != 200 {
		t.Errorf("%v\n%s", err, text)
	}
	shared, err := ctl(t, nil, append(args, "--routers", "2")...)
	if err != nil || !strings.Contains(shared, "; 2 routers, 3 engines") {
		t.Errorf("with two routers: %v\n%s", err, shared)
	}
	for flags, hint := range map[string]string{
		"--nodes 0":                   "--nodes 0: must be 1 to 4096",
		"--nodes 2000000":             "--nodes 2000000: must be 1 to 4096",
		"--routers 0":                 "--routers 0: must be 1 to 64",
		"--cache-share 0":             "--cache-share",
		"--utilisation 1":             "--utilisation",
		"--modes best":                `--modes "best": must be some of score, `,
		"--modes score_exac":          ", score_exact, device_aware",
		"--modes kv,direct":           `--modes "direct": cannot be simulated, because simulated requests name no node`,
		"--modes predicted,predicted": "--modes predicted is given twice",
		"--modes kv,score,cost":       "--modes cost is given twice",
		"--lifetime -1s":              "--lifetime -1s: must be 0s or more",
		"--speed Inf":                 "--speed +Inf: must be",
		"--speed NaN":                 "--speed NaN: must be",
		"--speed 1e-6":                "more than can be simulated",
		"--rate NaN":                  "--rate NaN: must be",
		"--rate 1e-300":               "--rate 1e-300: must be",
		"--rate 0":                    "--rate 0: must be",
		"--cache-share 1e300":         "--cache-share 1e+300: must be",
		"--trace nowhere":             "--trace: open nowhere",
		"--trace bench.go":            "--trace bench.go: trace line 1",
		"--policy {\"kv\":2}":         "kv: 2 is refused",
		"--cache-share 0.01":          "cannot hold the longest request",
	} {
		if _, err := ctl(t, nil, append(args[:4:4], strings.Fields("--speed 2 "+flags)...)...); err == nil ||
			!strings.Contains(err.Error(), hint) {
			t.Errorf("%s: %v", flags, err)
		}
	}
}

// TestBenchClusterSpellings checks that --modes takes the spellings of a policy document, and
// device_aware.
func TestBenchClusterSpellings(t *testing.T) {
	args := []string{"bench", "cluster", "--requests", "200", "--nodes", "3", "--cache-share", "3", "--speed", "2",
		"--modes"}
	named, err := ctl(t, nil, append(args, "cost,round_robin,score_exact,device_aware")...)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, named, "| cost | 0.", "| round_robin | 0.", "| score_exact | 0.", "| device_aware | 0.")
	spelled, err := ctl(t, nil, append(args, "kv,round-robin,score-exact,device-aware-weighted")...)
	if err != nil || spelled != named {
		t.Errorf("in other spellings (%v)\n%s\nnot\n%s", err, spelled, named)
	}
}

// TestBenchClusterDefaults: the search finishes with the default values.
func TestBenchClusterDefaults(t *testing.T) {
	for _, requests := range []string{"200", "500", "2000"} {
		text, err := ctl(t, nil, "bench", "cluster", "--requests", requests, "--modes", "round_robin")
		if err != nil {
			t.Fatalf("%s requests: %v, hint %q", requests, err, ctltest.Hint(err))
		}
		ctltest.Want(t, text, requests+" requests", "| round_robin | 0.", "| 0 |")
	}
	_, err := ctl(t, nil, "bench", "cluster", "--requests", "50", "--utilisation", "0.99")
	if err == nil || !strings.Contains(err.Error(), "is out of reach") {
		t.Fatal(err)
	}
	ctltest.Want(t, ctltest.Hint(err), "--utilisation", "--speed", "--cache-share", "--rate")
}
