package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/peers"
)

func TestCheckPeers(t *testing.T) {
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	usual := peers.Default()
	check := func(change func(c *peers.Config), write bool) string {
		c := peers.Default()
		c.Root = root
		change(&c)
		if err := checkPeers(&c, &usual, write); err != nil {
			return err.Error()
		}
		return ""
	}
	same := func(*peers.Config) {}
	if got := check(same, true); !strings.Contains(got, "cgn-router") {
		t.Errorf("without a router: %q", got)
	}
	if err := os.WriteFile(filepath.Join(root, "bin", "cgn-router"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		change func(c *peers.Config)
		write  bool
		want   string
	}{
		{same, true, ""},
		{func(c *peers.Config) { c.Modes = []string{"cost"} }, true, ""},
		{func(c *peers.Config) { c.Modes = []string{"x"} }, false, "--modes"},
		{func(c *peers.Config) { c.Scale = 0 }, false, "--scale"},
		{func(c *peers.Config) { c.Contestants = []string{"smg"} }, false, ""},
		{func(c *peers.Config) { c.Contestants = []string{"smg"} }, true, "--write"},
		{func(c *peers.Config) { c.Bursts = 0 }, true, "--write"},
	} {
		if got := check(c.change, c.write); c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestPeersCommand: the command in the report has each setting that differs from its default.
func TestPeersCommand(t *testing.T) {
	c := peers.Default()
	if got := peersCommand(&c, ""); got != "cgn-ctl bench peers-routing" {
		t.Error(got)
	}
	c.Rates, c.Modes, c.Loads = []float64{40, 41.5}, []string{"cost"}, []int{60}
	c.Engines.Speedup, c.Events = 0.25, true
	const want = "cgn-ctl bench peers-routing --trace t.jsonl --rate 40,41.5 --modes cost --kv-events --loads 60 " +
		"--speedup 0.25"
	if got := peersCommand(&c, "/traces/t.jsonl"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestPeersSection: the report has a place in perf/REPORTS.md.
func TestPeersSection(t *testing.T) {
	text, err := os.ReadFile("../../perf/REPORTS.md")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "REPORTS.md")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := compare.WriteSection(path, peersSection, "text"); err != nil {
		t.Error(err)
	}
}
