package awake

import (
	"testing"
	"testing/synctest"
	"time"
)

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
