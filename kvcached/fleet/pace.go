package fleet

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// pace measures how fast pulls bring blocks to this host. It divides the time in which at least one
// pull runs into stretches. Stretch i takes seconds[i], without pauses, and brings bytes[i]:
//
//	speed  = sum(bytes[i] * weight[i]) / sum(seconds[i] * weight[i])
//	weight = exp(-s/paceMemory - t/paceFade)
//
// s is the length of the later stretches, and t the time since the end of the stretch, pauses
// included, until the end of the last one. So pulls side by side count together, and a host without
// pulls keeps its speed.
//
// A stretch counts that brought paceLeast or took paceStretch. One that ends before is continued by
// the next pulls, unless those are enough by themselves. Time in which nothing came does not count,
// nor do pulls of less than paceSmall, which take a round trip however fast the network is. In the
// first stretch connections are made, so it counts until the next one only.
type pace struct {
	speed atomic.Uint64 // bits of the bytes per second; 0: nothing came yet

	mu             sync.Mutex
	running        int
	since          time.Time // until when the running stretch has been counted
	stretch        float64   // seconds since the last stretch or pause
	came           float64   // bytes that came in these seconds
	begunSeconds   float64   // seconds before the pause of a stretch that is not enough yet
	begunBytes     float64   // bytes that came in these seconds
	last           time.Time // end of the last stretch that counted; zero: none
	seconds, bytes float64   // decayed sums of earlier stretches
}

const (
	// paceSmall is the length in bytes from which on a pull counts.
	paceSmall = 32 << 10
	// paceLeast is the number of bytes from which on a stretch counts, however short it is.
	paceLeast = 256 << 10
	// paceAssumed is the speed, in bytes per second, once something has come that does not count.
	paceAssumed = 125e6
	// paceMemory is the time with pulls after which a stretch counts 1/e.
	paceMemory = 10.0 // seconds
	// paceFade is the time with or without pulls after which a stretch counts 1/e.
	paceFade = 60.0 // seconds
	// paceStretch is the length from which on a stretch counts, however little came.
	paceStretch = 1.0 // seconds
)

// begin notes that so many bytes are coming by a pull that began at some time. It says whether the
// pull counts. Then end must follow.
func (p *pace) begin(began time.Time, bytes int, now time.Time) bool {
	if bytes < paceSmall {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running == 0 && began.After(p.since) {
		p.since = began
	}
	p.running++
	p.pass(now)
	return true
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
	if p.came == 0 { // the begun stretch waits for the next pull
		p.stretch = 0
		return
	}
	if !enough(p.stretch, p.came) {
		p.stretch, p.came = p.stretch+p.begunSeconds, p.came+p.begunBytes
	}
	if enough(p.stretch, p.came) {
		p.count(now)
		p.begunSeconds, p.begunBytes = 0, 0
	} else {
		p.begunSeconds, p.begunBytes = p.stretch, p.came
	}
	p.stretch, p.came = 0, 0
}

// enough tells whether a stretch counts.
func enough(seconds, bytes float64) bool {
	return bytes >= paceLeast && seconds > 0 || seconds >= paceStretch
}

// assume gives a speed that was not measured yet a first value: something came.
func (p *pace) assume() { p.speed.CompareAndSwap(0, math.Float64bits(paceAssumed)) }

// count adds the running stretch to the speed. The caller holds p.mu.
func (p *pace) count(now time.Time) {
	first := p.last.IsZero()
	keep := math.Exp(-p.stretch/paceMemory - max(now.Sub(p.last).Seconds(), 0)/paceFade)
	p.seconds, p.bytes, p.last = p.seconds*keep+p.stretch, p.bytes*keep+p.came, now
	p.speed.Store(math.Float64bits(p.bytes / p.seconds))
	if first {
		p.seconds, p.bytes = 0, 0
	}
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
