package queue

import (
	"fmt"
	"slices"
	"testing"
)

// TestLanes checks that requests for full nodes do not hold up those for others.
func TestLanes(t *testing.T) {
	q, full, other := New(plenty), &node{}, &node{free: 2}
	l := q.Line("m")
	for i := range 3 {
		join(t, l, full, fmt.Sprint("full", i), Claim{Tenant: "a", Lane: 7}, 1)
	}
	join(t, l, other, "any", Claim{Tenant: "a"}, 1)
	join(t, q.Line("m2"), other, "of another line", Claim{Tenant: "a", Lane: 7}, 1)
	q.serve()
	if got := other.names(); len(got) != 2 || q.wait() != 3 {
		t.Errorf("%v ran, %d wait", got, q.wait())
	}
	full.free = 3
	q.serve()
	if got := full.names(); len(got) != 3 || got[0] != "full0" {
		t.Errorf("%v ran", got)
	}
}

// TestLanesAreBounded checks that requests for different nodes have lanes of their own while few
// are in use, and that any number of them has a bounded number of lanes.
func TestLanesAreBounded(t *testing.T) {
	q, full, other := New(plenty), &node{}, &node{free: 1}
	l := q.Line("m")
	for i := range uint64(lanes - 1) {
		join(t, l, full, "full", Claim{Lane: 7 + i*(lanes-1)}, 1)
	}
	join(t, l, other, "other", Claim{Lane: 7 + lanes*(lanes-1)}, 1)
	if q.serve(); len(other.ran) != 1 {
		t.Error("a request for full nodes holds up one for another node")
	}
	for i := range uint64(1000) {
		join(t, l, full, "full", Claim{Lane: 1 << 40 * (i + 1) / 999}, 1)
	}
	if n := len(l.lanes); n < lanes || n >= 2*lanes {
		t.Errorf("%d lanes", n)
	}
	other.free = 1
	join(t, l, other, "any", Claim{}, 1)
	if q.serve(); len(other.ran) != 2 {
		t.Error("requests with restrictions hold up one without")
	}
	if n := len(l.lanes); n > 2*lanes {
		t.Errorf("%d lanes", n)
	}
	full.free = 2000
	q.serve()
	for _, a := range slices.Concat(full.ran, other.ran) {
		a.Settle(1)
	}
	q.empty(t)
}
