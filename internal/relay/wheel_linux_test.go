package relay

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestWheel compares the wheel with a map, at random.
func TestWheel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var w wheel
	due := map[*timer]int64{}
	timers := make([]timer, 200)
	now := int64(0)
	for range 20_000 {
		one := &timers[random.IntN(len(timers))]
		switch random.IntN(4) {
		case 0:
			w.drop(one)
			delete(due, one)
		case 1, 2:
			at := now + int64(random.IntN(3*wheelSlots)) - 5
			w.set(one, at)
			due[one] = min(max(at, now+1), now+wheelSlots-1)
		default:
			now += int64(random.IntN(wheelSlots / 4))
			w.advance(now, func(t2 *timer) {
				at, ok := due[t2]
				if !ok || at > now || at != w.at || t2.set() {
					t.Fatalf("fired at %d, due %d %v", w.at, at, ok)
				}
				delete(due, t2)
				if random.IntN(2) == 0 {
					at := w.at + 1 + int64(random.IntN(wheelSlots-1))
					w.set(t2, at)
					due[t2] = at
				}
			})
		}
		first := int64(-1)
		for _, at := range due {
			if first < 0 || at < first {
				first = at
			}
		}
		if first >= 0 && first <= now {
			t.Fatalf("at %d a timer of %d has not fired", now, first)
		}
		if tick, ok := w.next(); ok != (first >= 0) || ok && tick != first {
			t.Fatalf("next is %d %v, want %d", tick, ok, first)
		}
	}
}
