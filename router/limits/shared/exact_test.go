package shared

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"
)

// TestExact checks each kind of limit, and what a refusal says.
func TestExact(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	for what, c := range map[string]struct {
		rule        int
		limit, each int64
	}{
		"requests":  {rpm, 3, 1},
		"tokens":    {tpm, 100, 40},
		"a day":     {tpd, 1000, 501},
		"at a time": {flight, 2, 1},
		"a month":   {budget, 1000, 400},
	} {
		t.Run(what, func(t *testing.T) {
			k, other := subject(l, "acme", what), subject(l, "acme", "other")
			limit := k.of(c.rule, c.limit, c.each)
			var all []*Reservation
			for range c.limit / c.each {
				r, _ := reserve(t, l, Admitted, limit)
				all = append(all, r)
			}
			_, no := reserve(t, l, Refused, other.of(rpm, 1000, 1), limit)
			if used := int64(len(all)) * c.each; no.Limit != 1 || no.Used != used && no.Used != used-1 || no.Never {
				t.Errorf("%+v", no)
			}
			if (no.Wait > 0) != (c.rule < flight) || no.Wait > 24*time.Hour {
				t.Errorf("%+v", no)
			}
			all[0].Settle(nil)
			all[0].Settle(nil)
			reserve(t, l, Admitted, limit)
			if _, no := reserve(t, l, Refused, k.of(c.rule, c.limit, c.limit+1)); !no.Never || no.Wait != 0 {
				t.Errorf("%+v", no)
			}
		})
	}
}

// TestExactAllOrNothing checks that a refused request leaves nothing counted.
func TestExactAllOrNothing(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	wide, tight := subject(l, "acme", "wide"), subject(l, "acme", "tight")
	reserve(t, l, Admitted, tight.of(rpm, 1, 1))
	for range 20 {
		_, no := reserve(t, l, Refused, wide.of(rpm, 50, 1), wide.of(tpm, 1000, 100), wide.of(flight, 5, 1),
			tight.of(rpm, 1, 1))
		if no.Limit != 3 {
			t.Errorf("%+v", no)
		}
	}
	for _, rule := range []int{rpm, tpm, flight} {
		if held, used := counted(t, s, wide.Bucket(rule)); held != 0 || used != 0 {
			t.Errorf("rule %d: %d are held, %d used", rule, held, used)
		}
	}
}

// TestChangedLimit: what was used stays used when a limit changes, and a request that runs
// meanwhile counts for what it has used.
func TestChangedLimit(t *testing.T) {
	s := startServer(t)
	for _, exact := range []bool{true, false} {
		l, end := limiter(t, Options{Addresses: []string{s.At}, Exact: exact})
		k := subject(l, "acme", fmt.Sprint("exact=", exact))
		is := func(held, used int64) {
			t.Helper()
			wait(t, fmt.Sprintf("exact=%v: Redis counts %d held and %d used", exact, held, used), func() bool {
				h, u := counted(t, s, k.Bucket(tpd))
				return h == held && u <= used && u >= used-5 // 5 come back in 7 minutes
			})
		}
		r, _ := reserve(t, l, Admitted, k.of(tpd, 1000, 300))
		r.Settle([]int64{300})
		running, _ := reserve(t, l, Admitted, k.of(tpd, 1000, 100))
		r, _ = reserve(t, l, Admitted, k.of(tpd, 10000, 200))
		r.Settle([]int64{200})
		running.Settle([]int64{50})
		r, _ = reserve(t, l, Admitted, k.of(tpd, 10000, 2000))
		r.Settle(nil)
		settled(t, l)
		used := int64(550)
		if exact { // a lease may still have units of the higher limit
			used = 500 // what is above a window of the lower one is forgotten
			reserve(t, l, Refused, k.of(tpd, 500, 50))
			if is := stored(t, s, k.Bucket(tpd)); is.Limit != 500 {
				t.Errorf("%+v: what was used comes back by the former limit", is)
			}
		}
		end()
		is(0, used)
	}
}

// TestExactSettles checks that settling counts what was used, once, and that Redis itself refuses a
// second settlement.
func TestExactSettles(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(tpd, 1e6, 1000), k.of(flight, 10, 1)}
	r, _ := reserve(t, l, Admitted, limits...)
	id := r.id
	reserve(t, l, Admitted, limits...) // and never settles
	r.Settle([]int64{300, 0})
	r.Settle([]int64{300, 0})
	settled(t, l)
	want := func(holds, uses, flying int64) {
		t.Helper()
		held, used := counted(t, s, k.Bucket(tpd))
		if held != holds || used > uses || used < uses-50 { // 11 a second come back
			t.Errorf("%d tokens are held, %d used; not %d, %d", held, used, holds, uses)
		}
		if held, used := counted(t, s, k.Bucket(flight)); held != flying || used != 0 {
			t.Errorf("%d are in flight, not %d; %d", held, flying, used)
		}
	}
	want(1000, 300, 1)
	again := Reservation{l: l, id: id, n: 2}
	copy(again.limits[:], limits)
	l.settle(&again, []int64{0, 0})
	settled(t, l)
	want(1000, 300, 1)

	r, _ = reserve(t, l, Admitted, limits...)
	r.Settle([]int64{5000, 0}) // an engine counts more than was reserved
	settled(t, l)
	want(1000, 5300, 1)

	r, _ = reserve(t, l, Admitted, limits...)
	r.Settle([]int64{1e9, 0})
	settled(t, l)
	if _, used := counted(t, s, k.Bucket(tpd)); used > 11e6 {
		t.Errorf("what an engine claims uses up %d days", used/1e6)
	}
}

// TestExactComesLate checks that a reservation that reaches Redis after its settlement counts
// nothing: its router did not wait for it.
func TestExactComesLate(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	k := subject(l, "acme", "key")
	limit := k.of(tpd, 1000, 900)
	r := Reservation{l: l, id: l.next(), n: 1}
	r.limits[0] = limit
	k.Bucket(tpd).limit.Store(1000)
	id := r.id
	l.settle(&r, nil)
	settled(t, l)
	c := l.scripts.newRequests([]*request{{id: id, limits: []Limit{limit}}})
	if reply, err := l.scripts.run(t.Context(), l.db, c); err != nil || reply[0] != 0 {
		t.Error(reply, err)
	}
	if held, used := counted(t, s, k.Bucket(tpd)); held != 0 || used != 0 {
		t.Errorf("%d tokens are held, %d used", held, used)
	}
}

// TestExactBehind: a request that finds no room while settlements wait is refused if keeper does
// not come to them in time. That is no failure of Redis, and what keeper asked for the request
// counts nothing.
func TestExactBehind(t *testing.T) {
	s := startServer(t)
	l, err := New(Options{Addresses: []string{s.At}, Exact: true, OnFailure: Closed, Timeout: 2 * time.Second},
		slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	k := subject(l, "acme", "key")
	limit := k.of(tpd, 1000, 900)
	r, _ := reserve(t, l, Admitted, limit)
	r.Settle(nil) // which nobody tells Redis yet
	unsettled := func(want int) {
		t.Helper()
		if n, is := len(l.settles), l.Stats(); n != want || is.Away || is.Failures > 0 {
			t.Fatalf("%d settlements, not %d; %+v", n, want, is)
		}
	}
	reserve(t, l, Refused, limit)
	unsettled(1)
	<-l.asks // of that request, which is gone
	taken := make(chan *ask)
	go func() {
		a := <-l.asks
		a.state.CompareAndSwap(asked, answered)
		taken <- a
	}()
	reserve(t, l, Refused, limit)
	unsettled(2)
	late := <-taken
	for range maxAsks {
		l.asks <- &ask{call: &call{}}
	}
	reserve(t, l, Refused, limit)
	unsettled(2)
	for range maxAsks {
		<-l.asks
	}

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	defer func() { cancel(); <-done }()
	settled(t, l)
	if reply, err := l.scripts.run(ctx, s.db, late.call); err != nil || reply[0] != 0 {
		t.Error(reply, err)
	}
	if held, used := counted(t, s, k.Bucket(tpd)); held != 0 || used != 0 {
		t.Errorf("%d tokens are held, %d used", held, used)
	}
	reserve(t, l, Admitted, limit)
}
