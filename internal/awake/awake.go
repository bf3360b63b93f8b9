// Package awake measures for tests how long something took, on a machine that stands still now and then: an emulated one on a busy host.
package awake

import (
	"sync"
	"time"
)

// tick is how often a machine that runs is noticed.
const tick = 10 * time.Millisecond

// Clock returns what tells how long it was since, less what the machine stood still meanwhile, as far as ticks came later than twice their time. It has to be called once at least;
// the first call is the one that counts.
func Clock() (since func() time.Duration) {
	began, stop, still := time.Now(), make(chan struct{}), make(chan time.Duration)
	go func() {
		var lost time.Duration
		ticks := time.NewTicker(tick)
		defer ticks.Stop()
		for last := began; ; {
			select {
			case <-ticks.C:
				now := time.Now()
				lost += max(0, now.Sub(last)-2*tick)
				last = now
			case <-stop:
				still <- lost
				return
			}
		}
	}()
	return sync.OnceValue(func() time.Duration {
		took := time.Since(began)
		close(stop)
		return took - <-still
	})
}
