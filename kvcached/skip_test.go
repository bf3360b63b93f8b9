package kvcached

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
)

// TestARunWithoutSSDDropsTheOldTier deletes and replaces values in a run without SSD. The next
// start with SSD does not bring the old values back.
func TestARunWithoutSSDDropsTheOldTier(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(size int64, commands ...string) (replies []string, log string) {
		t.Helper()
		c, said := settings(t, dir, func(c *Config) { c.Daemon.SSD = config.Size(size) })
		d, stop := begin(t, c)
		replies = redis(t, d.At("resp"), commands...)
		if size > 0 && strings.HasPrefix(commands[0], "SET") {
			awaitThat(t, "SSD has both", func() bool { return d.store.Stats().SSD.Records == 2 })
		}
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		return replies, said.String()
	}
	run(128<<20, "SET a v1", "SET b v1", "GET a", "GET b")
	_, log := run(0, "DEL a", "SET b v2")
	if !strings.Contains(log, "level=WARN") || !strings.Contains(log, "has the blocks of an earlier run") {
		t.Error("without SSD:", log)
	}
	got, log := run(128<<20, "GET a", "GET b")
	if got[0] != "$-1" || got[1] != "$-1" {
		t.Errorf("%q after a run without SSD", got)
	}
	if !strings.Contains(log, "has run without this tier") {
		t.Error("with SSD again:", log)
	}
}
