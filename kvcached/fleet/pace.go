package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// pace measures how fast pulls bring blocks to this host. The speed is the bytes that came, over
// the time in which at least one pull ran. So pulls side by side count together, and a host without
// pulls keeps its speed. A stretch of that time in which nothing came does not count. The last
// paceMemory of that time counts most.
type pace struct {
	speed atomic.Uint64 // bits of the bytes per second; 0: nothing came yet

	mu             sync.Mutex
	running        int
	since          time.Time // until when the running stretch has been counted
	stretch        float64   // seconds of the running stretch
	came           float64   // bytes that came in the running stretch
	seconds, bytes float64   // decayed sums of earlier stretches
}

const (
	// paceMemory is the time with pulls after which an earlier stretch counts 1/e.
	paceMemory = 10.0 // seconds
	// paceStretch is the length from which on a stretch is counted although pulls still run.
	paceStretch = 1.0 // seconds
)

// begin notes that a pull begins.
func (p *pace) begin(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(now)
	p.running++
}

// end notes that a pull ends, which brought this many bytes; 0: it failed.
func (p *pace) end(bytes int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pass(now)
	p.running--
	p.came += float64(bytes)
	if p.running > 0 && p.stretch < paceStretch {
		return
	}
	if p.came > 0 && p.stretch > 0 {
		keep := math.Exp(-p.stretch / paceMemory)
		p.seconds, p.bytes = p.seconds*keep+p.stretch, p.bytes*keep+p.came
		p.speed.Store(math.Float64bits(p.bytes / p.seconds))
	}
	p.stretch, p.came = 0, 0
}

// pass counts the time until now, if a pull runs. The caller holds p.mu.
func (p *pace) pass(now time.Time) {
	if p.running > 0 {
		p.stretch += max(now.Sub(p.since).Seconds(), 0)
	}
	p.since = now
}

// PulledPerSecond returns the speed in bytes per second at which blocks of other hosts came here
// lately, while any came; 0: none came yet.
func (v *View) PulledPerSecond() float64 { return math.Float64frombits(v.pace.speed.Load()) }
