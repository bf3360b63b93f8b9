package pairs

import (
	"context"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
)

// TestRun compares the router with itself.
func TestRun(t *testing.T) {
	router := filepath.Join(t.TempDir(), "cgn-router")
	if out, err := exec.Command("go", "build", "-o", router, "../../cmd/cgn-router").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	r, err := Run(context.Background(), Config{Before: router, After: router, Mode: "round_robin",
		Scenarios: []string{"chat-2k"}, Pairs: 2, Window: 100 * time.Millisecond, Progress: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	f := &r.Scenarios[0]
	if f.Unit != "request" || len(f.Before) != 2 || len(f.After) != 2 || !(f.Before[1] > 0) || !(f.Ratio.Low > 0) {
		t.Errorf("%+v", r)
	}
	if r.After.Version == "" || r.After.Version != r.Before.Version {
		t.Errorf("versions %q and %q", r.Before.Version, r.After.Version)
	}
}

// TestAdapt: the adapted command does not name the router of bin.
func TestAdapt(t *testing.T) {
	c := compare.ContestantNamed("ours")
	adapt(c, "/other/router", "p2c")
	if c.Program != "/other/router" || c.Version[0] != "/other/router" || c.Processes[0].Command[0] != "/other/router" {
		t.Errorf("%+v", c)
	}
	all := strings.Join(c.Processes[0].Command, " ")
	if strings.Contains(all, ".Bin") || !strings.Contains(all, "--mode p2c ") {
		t.Error(all)
	}
}
