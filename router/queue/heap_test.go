package queue

import (
	"math/rand/v2"
	"testing"
)

// TestHeap checks the order, and what each element knows of its place, after random steps.
func TestHeap(t *testing.T) {
	var h heap[*holder]
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 20000 {
		switch n := random.IntN(3); {
		case n == 0 || len(h) == 0:
			h.push(&holder{share: float64(random.IntN(50))})
		case n == 1 && len(h) > step%40:
			h.remove(random.IntN(len(h)))
		default:
			at := random.IntN(len(h))
			h[at].share = float64(random.IntN(50))
			h.fix(at)
		}
		for at, e := range h {
			if e.at != at || e.before(h[0]) || e.before(h[max(at-1, 0)/2]) {
				t.Fatalf("step %d: %+v at %d of %d, after %+v", step, e, at, len(h), h[max(at-1, 0)/2])
			}
		}
	}
}
