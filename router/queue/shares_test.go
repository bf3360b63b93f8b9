package queue

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestBounds(t *testing.T) {
	q, at := New(Options{MaxRequests: 4, MaxBytes: 100, Weights: map[string]float64{"b": 3}}), &node{}
	l := q.Line("m")
	var of [4]*asked
	for i := range of {
		of[i] = join(t, l, at, fmt.Sprint(i), Claim{Tenant: "a", Bytes: 10, Band: i % 2}, 1)
	}
	refused := func(c Claim, want error) {
		t.Helper()
		c.Waiter = &asked{at: at}
		if err := l.Join(new(Ticket), c); !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", c, err, want)
		}
	}
	refused(Claim{Tenant: "a"}, ErrFull)
	refused(Claim{Tenant: "b", Bytes: 101}, ErrMemory)
	join(t, l, at, "a higher band", Claim{Tenant: "a", Band: 1, Bytes: 10}, 1)
	join(t, l, at, "b1", Claim{Tenant: "b", Bytes: 10}, 1)
	if !of[2].Ousted() || !of[0].Ousted() || of[2].Leave() {
		t.Error("others than the lowest requests of a had to leave")
	}
	<-of[2].Done()
	refused(Claim{Tenant: "a", Band: 1, Bytes: 10}, ErrFull)
	join(t, l, at, "b2", Claim{Tenant: "b", Bytes: 10}, 1) // by their weights b has less still
	if q.wait() != 4 || l.tenants["a"].waiting != 2 {
		t.Errorf("%d wait, %d of them of a", q.wait(), l.tenants["a"].waiting)
	}
	join(t, l, at, "c", Claim{Tenant: "c", Bytes: 30}, 1)
	refused(Claim{Tenant: "c", Bytes: 10}, ErrFull) // c has the largest share, by its bytes
	refused(Claim{Tenant: "d", Bytes: 45}, ErrFull)
	join(t, l, at, "d", Claim{Tenant: "d", Bytes: 20}, 1)
	if _, bytes := q.Depth(); bytes != 50 || l.tenants["c"] != nil {
		t.Errorf("%d bytes wait, %d requests of c", bytes, l.tenants["c"].waiting)
	}
	if q.waiting.Load() != 4 {
		t.Errorf("%d wait", q.waiting.Load())
	}
	at.free = 9
	q.serve()
	for _, a := range at.ran {
		a.Settle(0)
	}
	q.empty(t)
}

// TestNobodyLeavesInVain checks that no request leaves for one that is refused all the same, and
// that the order stays as it was.
func TestNobodyLeavesInVain(t *testing.T) {
	q, at := New(Options{MaxRequests: 100, MaxBytes: 800, Weights: map[string]float64{"b": 1000}}), &node{}
	var all []*asked
	for i := range 40 {
		all = append(all, join(t, q.Line(fmt.Sprint(i/39)), at, fmt.Sprint(i), Claim{Tenant: "a", Bytes: 20}, 1))
	}
	for range 3 {
		c := Claim{Tenant: "b", Bytes: 20*oustedMost + 1, Waiter: &asked{at: at}}
		if err := q.Line("0").Join(new(Ticket), c); err != ErrMemory {
			t.Errorf("a request that is too large: %v", err)
		}
	}
	if depth, bytes := q.Depth(); depth[0] != 40 || bytes != 800 || q.holders["a"].waiting != 40 {
		t.Errorf("%v with %d bytes wait", depth, bytes)
	}
	for i, a := range all {
		if a.Ousted() {
			t.Errorf("request %d has left", i)
		}
	}
	join(t, q.Line("0"), at, "b", Claim{Tenant: "b", Bytes: 20 * oustedMost}, 1)
	if q.wait() != 41-oustedMost {
		t.Errorf("%d wait, want %d", q.wait(), 41-oustedMost)
	}
	at.free = 100
	q.serve()
	last := -1
	for _, a := range at.ran {
		if a.Settle(1); a.Ousted() {
			t.Errorf("%s has left and ran", a.name)
		}
		if i := slices.Index(all, a); i >= 0 && i < 39 {
			if i < last {
				t.Errorf("%d ran after %d", i, last)
			}
			last = i
		}
	}
	q.empty(t)
}
