package shares

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestGreedyHoldersLeaveAShare: however many holders take all that they get, as much as each of
// them has is free for one more.
func TestGreedyHoldersLeaveAShare(t *testing.T) {
	const places = 120
	for n := range 12 {
		s := New(places)
		taken := make([]int, n+1)
		for again := true; again; {
			again = false
			for i := range taken {
				if s.Take(fmt.Sprint(i)) {
					taken[i]++
					again = true
				}
			}
		}
		for i, got := range taken {
			if want := places / (n + 2); got < want || got > want+1 {
				t.Errorf("%d holders: holder %d has %d places, not %d", n+1, i, got, want)
			}
		}
		if !s.Take("another") {
			t.Errorf("%d holders leave no place for another", n+1)
		}
	}
}

// TestPlacesComeBack: places that are given back can be taken again, and holders without a place
// are forgotten.
func TestPlacesComeBack(t *testing.T) {
	const places = 64
	s := New(places)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			r, held := rand.New(rand.NewPCG(uint64(w), 1)), []string(nil)
			for range 10_000 {
				if who := fmt.Sprint(r.IntN(4)); r.IntN(2) == 0 && s.Take(who) {
					held = append(held, who)
				} else if len(held) > 0 {
					s.Give(held[0])
					held = held[1:]
				}
			}
			for _, who := range held {
				s.Give(who)
			}
		})
	}
	all.Wait()
	if s.Held() != 0 || s.free != places || len(s.held) != 0 {
		t.Errorf("%d places are free, %v are held", s.free, s.held)
	}
}
