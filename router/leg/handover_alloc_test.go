//go:build !race

package leg

import (
	"testing"

	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
)

// TestBothPicksDoNotAllocate checks the way from a body to the picked nodes of a hand-over, in all
// modes. The race detector makes pools drop what they are given, so that all ways allocate.
func TestBothPicksDoNotAllocate(t *testing.T) {
	d := divided(t, 4, 4)
	body := chat(2 << 10)
	modes := []policy.Mode{policy.Score, policy.Cost, policy.RoundRobin, policy.LeastLoaded, policy.Predicted}
	for _, mode := range modes {
		p := policy.Default()
		p.Mode = mode
		d.policy.Store(p)
		r, l := request.New(), newLeg()
		w, err := pickBoth(d, r, l, body)
		if err != nil || w != Split && mode != policy.Predicted {
			t.Fatalf("%v: %v, %v", mode, w, err)
		}
		least := 1e9
		for range 10 {
			least = min(least, testing.AllocsPerRun(20, func() {
				if _, err := pickBoth(d, r, l, body); err != nil {
					t.Fatal(err)
				}
			}))
		}
		if least != 0 {
			t.Errorf("%v: %v allocations from a body to both nodes", mode, least)
		}
	}
}
