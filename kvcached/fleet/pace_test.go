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
	speed(0)
	p.begin(now)
	p.end(0, after(time.Second)) // a failed pull says nothing
	speed(0)
	p.begin(after(time.Hour))
	p.begin(after(50 * time.Millisecond)) // two side by side
	p.end(1000, after(25*time.Millisecond))
	p.end(1000, after(25*time.Millisecond))
	speed(20_000)
	p.begin(after(time.Hour)) // pauses do not count
	p.end(2000, after(100*time.Millisecond))
	speed(20_000)
	for range 40 { // a slower network shows after some seconds of pulls
		p.begin(after(time.Minute))
		p.end(1000, after(time.Second))
	}
	if got := v.PulledPerSecond(); got > 1100 {
		t.Errorf("%g bytes per second after 40 seconds at 1000", got)
	}
	p.begin(now)
	for range 100 { // pulls that overlap without a pause
		p.begin(now)
		p.end(50_000, after(500*time.Millisecond))
	}
	if got := v.PulledPerSecond(); got < 90_000 || got > 100_001 {
		t.Errorf("%g bytes per second while pulls overlap, want about 100,000", got)
	}
}
