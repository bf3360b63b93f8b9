package room

import (
	"sync"
	"testing"
)

func TestRoom(t *testing.T) {
	r := New(100)
	if !r.Take(99) || r.Take(2) || !r.Take(1) || r.Used() != 100 {
		t.Error("the bound does not hold")
	}
	if r.Give(100); r.Used() != 0 {
		t.Errorf("%d bytes are left", r.Used())
	}
}

// TestFailedTakesHarmNobody checks that what does not fit takes no room from what does, not even
// for a moment.
func TestFailedTakesHarmNobody(t *testing.T) {
	const rounds = 1_000_000
	r := New(100)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for range rounds {
				if r.Take(101) {
					t.Error("more was taken than there is")
				}
			}
		})
		all.Go(func() {
			for range rounds {
				if !r.Take(50) {
					t.Error("no room, although half of it is free")
					return
				}
				r.Give(50)
			}
		})
	}
	if all.Wait(); r.Used() != 0 {
		t.Errorf("%d bytes are left", r.Used())
	}
}
