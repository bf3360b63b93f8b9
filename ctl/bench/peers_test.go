package bench

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/cli"
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

// TestPeersCommand checks that the command in the report has each flag that was given, except those
// that say where things are.
func TestPeersCommand(t *testing.T) {
	const all = " --blocks=2048 --bursts=2 --contestants='round robin,smg' --kv-events --loads=60,90 --modes=cost " +
		"--most-cpu=0.5 --most-late=1s --rate=40,41.5 --rate-only --repeats=2 --requests=90 --scale=2 --speedup=0.25 " +
		"--trace=t.jsonl --windows=2 --workers=4"
	for want, given := range map[string][]string{
		"": {},
		all: {
			"--root=/r", "--write", "--rate=40,41.5", "--modes=cost", "--loads=60,90", "--speedup=0.25", "--kv-events",
			"--trace=/traces/t.jsonl", "--contestants=round robin,smg", "--windows=2", "--requests=90", "--scale=2",
			"--rate-only", "--repeats=2", "--bursts=2", "--workers=4", "--blocks=2048", "--most-cpu=0.5",
			"--most-late=1s",
		},
	} {
		c := newPeersRouting(&cli.App{})
		if err := c.ParseFlags(given); err != nil {
			t.Fatal(err)
		}
		if got := peersCommand(c.LocalFlags()); got != "cgn-ctl bench peers-routing"+want {
			t.Errorf("%s, want%s", got, want)
		}
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
