// Package awake measures for tests how long something took, on a machine that stands still now and
// then: an emulated one on a busy host.
package awake

import (
	"sync"
	"time"
)

// tick is how often a machine that runs is noticed.
const tick = 10 * time.Millisecond

// Clock returns what tells how long it was since, less what the machine stood still meanwhile, as
// far as ticks came later than twice their time. It has to be called once at least; the first call
// is the one that counts.
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

// running is for how long a machine ran.
type running struct {
	last time.Time
	time time.Duration
}

// until counts the time since it was last told, of which more than two ticks are a standstill.
func (r *running) until(now time.Time) {
	if since := now.Sub(r.last); since > 0 {
		r.time += min(since, 2*tick)
		r.last = now
	}
}
