package awake

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestStandstill: time in which the machine does not run does not count.
func TestStandstill(t *testing.T) {
	now := time.Now()
	r := running{last: now}
	for _, since := range []time.Duration{tick, time.Hour, tick / 2, -tick, 2 * tick} {
		now = now.Add(since)
		r.until(now)
	}
	if want := tick + 2*tick + tick/2 + tick; r.time != want {
		t.Errorf("%v, not %v", r.time, want)
	}
}

// TestClock: time in which the machine runs counts.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := Clock()
		time.Sleep(time.Second)
		if took := since(); took != time.Second || since() != took {
			t.Error(took)
		}
	})
}
