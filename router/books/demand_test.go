package books

import (
	"math"
	"testing"
	"time"
)

// TestDemand: prompts of known time count, and fade.
func TestDemand(t *testing.T) {
	var b Book
	var first, second, unknown Entry
	b.Open(&first, Cost{Prefill: 100, Learned: time.Second}, noon)
	b.Open(&unknown, Cost{Prefill: 100}, noon)
	later := noon.Add(DemandFor)
	b.Open(&second, Cost{Prefill: 100, Learned: 2 * time.Second}, later)
	first.Close(later) // what the node got, it got
	for _, c := range []struct {
		at   time.Time
		want float64
	}{{later, 2 + 1/math.E}, {later.Add(DemandFor), 2/math.E + 1/math.E/math.E}, {noon, 2 + 1/math.E}} {
		if got := b.Demand(c.at); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v s of prompts after %v, want %v", got, c.at.Sub(noon), c.want)
		}
	}
}

// TestElsewhere: a request counts until its first token, or its end.
func TestElsewhere(t *testing.T) {
	var b Book
	var all [2]Entry
	for i := range all {
		b.Open(&all[i], Cost{Blocks: 3, Elsewhere: true}, noon)
	}
	if b.Elsewhere() != 2 || b.WaitingPrompts() != 0 || b.Demand(noon) != 0 {
		t.Errorf("%d elsewhere, %d wait here", b.Elsewhere(), b.WaitingPrompts())
	}
	all[0].Begun(noon)
	all[0].Begun(noon)
	if b.Elsewhere() != 1 {
		t.Errorf("%d elsewhere after a first token", b.Elsewhere())
	}
	for i := range all {
		all[i].Close(noon)
	}
	if b.Elsewhere() != 0 || !b.Empty() {
		t.Errorf("%d elsewhere in the end", b.Elsewhere())
	}
}
