package kvevents

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRate: stored blocks are decoded and applied at half the target of a million in a second of CPU at least, in the best of some attempts: on a busy machine caches are others'.
func TestRate(t *testing.T) {
	if underRace {
		t.Skip("the race detector takes ten times as long")
	}
	const least, prompt, prompts = 500_000, 64, 256
	e := newApplier(t)
	batches := benchBatches(t, "map", 16, prompt, prompts)
	best := 0.0
	for range 20 {
		storing := e.takes(batches[:prompts])
		e.takes(batches[prompts:])
		if best = max(best, prompt*prompts/storing.Seconds()); best >= least {
			t.Logf("%.0f blocks in a second of CPU", best)
			return
		}
	}
	t.Errorf("at most %.0f blocks in a second of CPU, fewer than %d", best, least)
}

// used is the CPU time that the process has used. What is counted by it does not depend on what else the machine does.
func used(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
