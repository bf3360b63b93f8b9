package transport

import (
	"log/slog"
	"sync"
	"time"
)

// Indexes of a peer's lanes.
const (
	overQUIC = iota
	overTLS
)

var laneNames = [2]Lane{overQUIC: QUIC, overTLS: TLS}

const (
	largePull    = 1 << 20 // bytes of a pull that is large enough to measure throughput
	firstSamples = 3       // large pulls over each lane before the faster one is preferred
	askAgain     = 128     // large pulls after which the other lane is measured again
	askAgainFor  = 3       // large pulls that measure the other lane
	margin       = 1.15    // the other lane is preferred if it is this many times as fast
	downFor      = 10 * time.Second
	// tellsMuch is the duration from which a pull that times out measures throughput, even if it is
	// small.
	tellsMuch = time.Second
)

// chooser picks a lane for each operation.
type chooser struct {
	log   *slog.Logger
	fixed bool
	count [2]*laneCounters

	mu      sync.Mutex
	prefer  int
	rate    [2]float64 // bytes per second; later pulls count more
	samples [2]int
	picks   int // large pulls since the last change or measurement
	down    [2]time.Time
}

func (c *chooser) init(l Lane, log *slog.Logger, count [2]*laneCounters) {
	c.log, c.fixed, c.count = log, l == QUIC || l == TLS, count
	if l == TLS {
		c.prefer = overTLS
	}
}

// pick returns the lane for an operation. Large pulls use both lanes until both are measured, and
// again from time to time.
func (c *chooser) pick(large bool) int {
	if c.fixed {
		return c.prefer
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	other := 1 - c.prefer
	if time.Now().Before(c.down[c.prefer]) {
		return other
	}
	if !large || time.Now().Before(c.down[other]) {
		return c.prefer
	}
	c.picks++
	if c.samples[c.prefer] < firstSamples {
		return c.prefer
	}
	if c.samples[other] < firstSamples || c.picks > askAgain {
		if c.picks >= askAgain+askAgainFor {
			c.picks = 0
		}
		return other
	}
	return c.prefer
}

// took counts a pull of got bytes that took d.
func (c *chooser) took(which int, got int64, d time.Duration) {
	if c.fixed || got < largePull || d <= 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	rate := float64(got) / d.Seconds()
	if c.samples[which]++; c.samples[which] == 1 {
		c.rate[which] = rate // the first sample includes the time to connect, so the second may change much
	} else {
		c.rate[which] += (rate - c.rate[which]) * 0.3
	}
	other := 1 - c.prefer
	if c.samples[0] >= firstSamples && c.samples[1] >= firstSamples && c.rate[other] > margin*c.rate[c.prefer] {
		c.change("throughput")
	}
}

// ranOut counts a pull that timed out after got bytes. It replaces the lane's measured rate. The
// other lane becomes the preferred one, unless it is known to be no faster.
func (c *chooser) ranOut(which int, got int64, d time.Duration, large bool) {
	c.count[which].ranOut.Add(1)
	if c.fixed || d <= 0 || !large && d < tellsMuch {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rate[which] = float64(got) / d.Seconds()
	c.samples[which] = max(c.samples[which], firstSamples)
	other := 1 - which
	switch {
	case which != c.prefer:
		c.picks = 0 // no further pulls over the other lane for now
	case time.Now().Before(c.down[other]):
	case c.samples[other] == 0 || c.rate[other] > margin*c.rate[which]:
		c.change("timeout")
	}
}

// change makes the other lane the preferred one. The caller holds mu.
func (c *chooser) change(reason string) {
	other := 1 - c.prefer
	c.log.Info("lane changed", "lane", laneNames[other], "reason", reason,
		"bytes_per_s", int64(c.rate[other]), "bytes_per_s_before", int64(c.rate[c.prefer]))
	c.prefer, c.picks = other, 0
	c.count[other].chosen.Add(1)
}

// failed notes that a lane cannot be reached, and tells whether to try the other lane.
func (c *chooser) failed(which int, err error) bool {
	if c.fixed {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if !now.Before(c.down[which]) {
		c.log.Warn("lane does not get through", "lane", laneNames[which], "error", err)
	}
	c.down[which] = now.Add(downFor)
	return !now.Before(c.down[1-which])
}
