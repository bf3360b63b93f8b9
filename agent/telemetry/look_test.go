package telemetry

import (
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// TestSample: a sample holds the changes within the window. A figure whose count was set back, or
// without events, is unknown.
func TestSample(t *testing.T) {
	var p past
	now := time.Now()
	waits := bpf.Histogram{Buckets: make([]uint64, 384)}
	m := at{known: true, pid: 7}
	step := func(n int, change func()) load.Kernel {
		for range n {
			now = now.Add(50 * time.Millisecond)
			m.time, m.rtt = now, 0
			m.waits = bpf.Histogram{Count: waits.Count, Sum: waits.Sum, Buckets: slices.Clone(waits.Buckets)}
			change()
			p.add(m)
		}
		return p.sample()
	}
	if s := step(1, func() {}); s != (load.Kernel{At: s.At}) {
		t.Errorf("one look tells of no rate: %+v", s)
	}
	s := step(300, func() {
		m.cpu += 75 * time.Millisecond
		m.delay += 10 * time.Millisecond
		m.front.SegmentsSent += 100
		m.front.Retransmits++
		m.rtt = 300 * time.Microsecond
		m.waits.Buckets[3] += 99
		m.waits.Buckets[100]++
		m.waits.Count += 100
		waits = m.waits
	})
	lower, upper := bpf.Bounds(3)
	if v, _ := s.RunqUsP99.Get(); v*1e3 < float64(lower) || v*1e3 > float64(upper) {
		t.Errorf("99 of 100 waits are in %v to %v: %v", lower, upper, s.RunqUsP99)
	}
	want := load.Kernel{At: s.At, RunqUsP99: s.RunqUsP99}
	want.CPUPct, want.EngineWaitPct = load.Known(150), load.Known(20)
	want.RetransPPM, want.SRTTUsP50 = load.Known(10000), load.Known(300)
	if s != want {
		t.Errorf("%+v, want %+v", s, want)
	}
	if s := step(40, func() {}); s.CPUPct != load.Known(0) || !between(s.EngineWaitPct, 17, 17.8) {
		t.Errorf("of waits, half is left after 10 s: %+v", s)
	}
	if s := step(40, func() { m.delay += 40 * time.Millisecond }); s.EngineWaitPct != load.Known(80) {
		t.Errorf("waits of the last second count at once: %+v", s)
	}
	if len(p.moments) > 22 || len(p.slow) > mostSlow || len(p.trips) > mostTrips {
		t.Errorf("%d moments, %d slow ones and %d round trips are kept", len(p.moments), len(p.slow), len(p.trips))
	}
	s = step(25, func() { m.pid, m.cpu, m.delay = 8, time.Millisecond, 0 })
	if s.CPUPct != load.Known(0) || s.EngineWaitPct != load.Known(0) || s.RunqUsP99 != (load.Gauge{}) ||
		s.SRTTUsP50 != load.Known(300) {
		t.Errorf("another engine that does nothing: %+v", s)
	}
	if s := step(1, func() { m.front = bpf.Sockets{} }); s.RetransPPM != (load.Gauge{}) {
		t.Errorf("counts that were set back: %+v", s)
	}
	if s := step(300, func() {}); s.RetransPPM != (load.Gauge{}) || s.SRTTUsP50 != (load.Gauge{}) {
		t.Errorf("nothing has been sent for a while: %+v", s)
	}
}

func TestPause(t *testing.T) {
	for cpu, want := range map[time.Duration]time.Duration{
		0: 50 * time.Millisecond, 100 * time.Microsecond: 50 * time.Millisecond,
		time.Millisecond: 500 * time.Millisecond, time.Second: longestPause,
	} {
		if got := pause(50*time.Millisecond, costShare*cpu); got != want {
			t.Errorf("after %v: %v, not %v", cpu, got, want)
		}
	}
}

func between(g load.Gauge, low, high float64) bool {
	v, known := g.Get()
	return known && v >= low && v <= high
}

// TestShareWrapped: the kernel counts a connection's segments in 32 bits. If a sum of such counts
// has decreased, the share stays unknown until the window holds only later counts.
func TestShareWrapped(t *testing.T) {
	const wrap = 1 << 32
	for _, c := range []struct {
		retransmits, segments [2]uint64
		want                  float64 // -1: unknown
	}{
		{[2]uint64{100, 103}, [2]uint64{1000, 4000}, 1000},
		{[2]uint64{wrap - 3, 2}, [2]uint64{1000, 4000}, -1},
		{[2]uint64{100, 103}, [2]uint64{wrap - 1000, 2000}, -1},
		{[2]uint64{100, 103}, [2]uint64{wrap - 1000, wrap + 2000}, 1000}, // counts of BPF, which have 64 bits
	} {
		v, known := share(c.retransmits[1]-c.retransmits[0], c.segments[1]-c.segments[0]).Get()
		if known != (c.want >= 0) || known && v != c.want {
			t.Errorf("%+v: %v, %v", c, v, known)
		}
	}
}
