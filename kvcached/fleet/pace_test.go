package fleet

import (
	"math"
	"testing"
	"time"
)

// TestPace checks that the speed is that of the time in which pulls run.
func TestPace(t *testing.T) {
	v, now := &View{}, time.Unix(1000, 0)
	p := &v.pace
	after := func(d time.Duration) time.Time { now = now.Add(d); return now }
	speed := func(want float64) {
		t.Helper()
		if got := v.PulledPerSecond(); math.Abs(got-want) > want/1000 {
			t.Fatalf("%g bytes per second, want %g", got, want)
		}
	}
	const kib, mib = 1 << 10, 1 << 20
	begin := func(at time.Time, bytes int) {
		t.Helper()
		if !p.begin(at, bytes, at) {
			t.Fatalf("a pull of %d bytes does not count", bytes)
		}
	}
	speed(0)
	begin(now, mib)
	p.end(0, after(time.Second)) // a failed pull says nothing
	speed(0)
	begin(after(time.Hour), mib) // the first stretch counts until the next
	p.end(mib, after(time.Second))
	speed(mib)
	begin(after(time.Hour), mib)
	begin(after(50*time.Millisecond), mib) // two side by side
	p.end(mib, after(25*time.Millisecond))
	p.end(mib, after(25*time.Millisecond))
	speed(20 * mib)
	begin(after(time.Hour), 2*mib) // pauses do not count
	p.end(2*mib, after(100*time.Millisecond))
	speed(20 * mib)
	for range 1000 { // small pulls do not count
		if p.begin(now, 1, after(time.Millisecond)) {
			t.Fatal("a pull of a byte counts")
		}
	}
	begin(now, 64*kib) // nor does a short stretch of few bytes, if a long one follows
	p.end(64*kib, after(100*time.Millisecond))
	speed(20 * mib)
	p.assume() // it was measured
	speed(20 * mib)
	began := after(time.Hour) // the time before a pull's length is known counts
	if !p.begin(began, mib, after(50*time.Millisecond)) {
		t.Fatal("a pull of 1 MiB does not count")
	}
	p.end(mib, after(150*time.Millisecond))
	speed(5 * mib)
	for range 40 { // a slower network shows after some seconds of pulls
		begin(after(time.Second), 64*kib)
		p.end(64*kib, after(time.Second))
	}
	if got := v.PulledPerSecond(); got > 70*kib {
		t.Errorf("%g bytes per second after 40 seconds at 64 KiB", got)
	}
	begin(after(5*time.Minute), mib) // an old speed fades
	p.end(mib, after(100*time.Millisecond))
	if got := v.PulledPerSecond(); got < 5*mib {
		t.Errorf("%g bytes per second after minutes without pulls and one at 10 MiB", got)
	}
	begin(now, mib)
	for range 100 { // pulls that overlap without a pause
		begin(now, mib)
		p.end(mib, after(500*time.Millisecond))
	}
	if got := v.PulledPerSecond(); got < 1.9*mib || got > 2.1*mib {
		t.Errorf("%g bytes per second while pulls overlap, want about 2 MiB", got)
	}
}

// TestPaceOfSmallPulls checks that short stretches of few bytes count together.
func TestPaceOfSmallPulls(t *testing.T) {
	for _, c := range []struct {
		pulls int
		took  time.Duration
	}{{4, 10 * time.Millisecond}, {2, 500 * time.Millisecond}} {
		v, now := &View{}, time.Unix(1000, 0)
		pull := func(bytes int) {
			now = now.Add(time.Minute)
			v.pace.begin(now, 64<<10, now)
			now = now.Add(c.took)
			v.pace.end(bytes, now)
			v.pace.assume()
		}
		for n := range c.pulls {
			if n > 0 && v.PulledPerSecond() != paceAssumed {
				t.Errorf("%g bytes per second after %d pulls in %v each", v.PulledPerSecond(), n, c.took)
			}
			pull(64 << 10)
			if n+1 < c.pulls {
				pull(0) // failed
			}
		}
		want := (64 << 10) / c.took.Seconds()
		if got := v.PulledPerSecond(); math.Abs(got-want) > want/1000 {
			t.Errorf("%g bytes per second after %d pulls in %v each, want %g", got, c.pulls, c.took, want)
		}
	}
}

// TestPaceIsAssumed checks that a speed counts once something small has come.
func TestPaceIsAssumed(t *testing.T) {
	none := &View{}
	if none.pace.assume(); none.PulledPerSecond() != paceAssumed {
		t.Errorf("%g bytes per second after a small pull", none.PulledPerSecond())
	}
}
