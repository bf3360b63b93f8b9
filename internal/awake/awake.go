// Package awake measures durations in tests without the time in which the machine did not run. An
// emulated machine on a busy host pauses now and then.
package awake

import (
	"sync"
	"time"
)

// tick is the interval at which a running machine is noticed.
const tick = 10 * time.Millisecond

// Clock returns a stopwatch that excludes pauses of the machine. A pause is the part of an interval
// between ticks beyond two ticks. since must be called at least once, and its first call stops the
// stopwatch.
func Clock() (since func() time.Duration) {
	began, stop, took := time.Now(), make(chan time.Time), make(chan time.Duration)
	go func() {
		ran := running{last: began}
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				ran.until(time.Now())
			case now := <-stop:
				ran.until(now)
				took <- ran.time
				return
			}
		}
	}()
	return sync.OnceValue(func() time.Duration {
		stop <- time.Now()
		return <-took
	})
}

// running is the time for which a machine has run.
type running struct {
	last time.Time
	time time.Duration
}

// until adds the time since the last call, but at most two ticks, because more is a pause.
func (r *running) until(now time.Time) {
	if since := now.Sub(r.last); since > 0 {
		r.time += min(since, 2*tick)
		r.last = now
	}
}
