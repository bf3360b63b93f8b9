package shared

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// wide are limits that steady load does not reach.
func wide(k *Subject, tokens int64) []Limit {
	return []Limit{k.of(rpm, 1e9, 1), k.of(tpm, 1e12, tokens), k.of(tpd, 1e12, tokens), k.of(flight, 10000, 1)}
}

// TestLeaseRoundTrips: under steady load at most one request in 100 costs a round trip.
func TestLeaseRoundTrips(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}})
	tenant, key := subject(l, "acme", "tenant"), subject(l, "acme", "key")
	load := func(each int) {
		var all sync.WaitGroup
		for client := range 16 {
			all.Go(func() {
				random := rand.New(rand.NewPCG(1, uint64(client)))
				var r Reservation
				for range each {
					n := 500 + random.Int64N(2000)
					if no, v := l.Reserve(&r, append(wide(key, n), wide(tenant, n)...)); v != Admitted {
						t.Errorf("verdict %d, %+v", v, no)
						return
					}
					used := random.Int64N(n)
					r.Settle([]int64{1, used, used, 1, 1, used, used, 1})
				}
			})
		}
		all.Wait()
	}
	load(100)
	before, scripts := l.Stats(), s.evalshas()
	const each = 5000
	load(each)
	after := l.Stats()
	trips := after.RoundTrips - before.RoundTrips
	t.Logf("%d requests, %d round trips with %d scripts, %d requests waited", 16*each, trips, s.evalshas()-scripts,
		after.Waits-before.Waits)
	if trips*100 > 16*each {
		t.Errorf("%d round trips for %d requests", trips, 16*each)
	}
}

// TestLeaseCosts: the first ten requests of a key cost one round trip, and later ones the more the
// smaller the limit is.
func TestLeaseCosts(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, look: time.Hour})
	wait(t, "Redis answers", func() bool { return l.until.Load() > 0 })
	ask := func(limit Limit, n int) (trips int64) {
		before := l.Stats().RoundTrips
		for range n {
			r, _ := reserve(t, l, Admitted, limit)
			r.Settle([]int64{limit.Units})
		}
		return int64(l.Stats().RoundTrips - before)
	}
	first := int64(0)
	for i := range 60 {
		first += ask(subject(l, "acme", fmt.Sprint("key ", i)).of(rpm, 6000, 1), 8)
	}
	t.Logf("60 keys with 8 requests each: %d round trips", first)
	if first > 60 {
		t.Errorf("%d round trips for the first requests of 60 keys", first)
	}
	for _, most := range []int64{60, 600, 2400, 6000, 60000} {
		n := int(min(most, 12000) / 2)
		trips := ask(subject(l, "acme", fmt.Sprint("limit ", most)).of(rpm, most, 1), n)
		t.Logf("a limit of %d: %d round trips for %d requests, %.1f of 100", most, trips, n,
			float64(trips)*100/float64(n))
		if bound := 3 + int64(n)*48/most + int64(n)/50; trips > bound {
			t.Errorf("a limit of %d: %d round trips for %d requests, at most %d", most, trips, n, bound)
		}
	}
}

// warm makes requests until the router has a lease.
func warm(t testing.TB, l *Limiter, limits ...Limit) {
	t.Helper()
	wait(t, "there is a lease", func() bool {
		r, _ := reserve(t, l, Admitted, limits...)
		r.Settle(nil)
		for i := range limits {
			if b := limits[i].Bucket; b.window != 0 && b.left.Load() < 5*limits[i].Units {
				return false
			}
		}
		return true
	})
}

// TestLeaseGoesBack: an idle lease goes back, but not what running requests have of it.
func TestLeaseGoesBack(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, look: 20 * time.Millisecond})
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(budget, 1e6, 100), k.of(rpm, 1e6, 1)}
	warm(t, l, limits...)
	r, _ := reserve(t, l, Admitted, limits...)
	wait(t, "only the running request holds", func() bool {
		held, _ := counted(t, s, k.Bucket(budget))
		requests, _ := counted(t, s, k.Bucket(rpm))
		return held == 100 && requests == 0
	})
	r.Settle([]int64{70, 1})
	wait(t, "nothing is held", func() bool {
		held, used := counted(t, s, k.Bucket(budget))
		return held == 0 && used == 70
	})
}

// TestLeaseEnds: a router that ends gives back what it has, and a router that dies what it held.
func TestLeaseEnds(t *testing.T) {
	s := startServer(t)
	l, end := limiter(t, Options{Addresses: []string{s.At}})
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(budget, 1e6, 100), k.of(flight, 100, 1)}
	warm(t, l, limits...)
	if held, _ := counted(t, s, k.Bucket(budget)); held < 500 {
		t.Errorf("%d tokens are held", held)
	}
	r, _ := reserve(t, l, Admitted, limits...)
	r.Settle([]int64{5000, 0}) // 4900 more than reserved
	end()
	if held, used := counted(t, s, k.Bucket(budget)); held != 0 || used != 5000 {
		t.Errorf("%d tokens are held, %d used", held, used)
	}

	other, _ := limiter(t, Options{Addresses: []string{s.At}})
	k2 := subject(other, "acme", "key")
	dead := subject(l, "acme", "key")
	c := l.scripts.newLease(dead.mark)
	all := dead.of(flight, 100, 100)
	c.lease(&all, 100, 0)
	if reply, err := other.scripts.run(t.Context(), other.db, c); err != nil || reply[0] != 1 {
		t.Fatal(reply, err)
	}
	reserve(t, other, Refused, k2.of(flight, 100, 1))
	// As if 30 s had passed.
	expired := []any{"#", packed(nil, 1, 1e16), "#" + dead.holder, packed(nil, 1)}
	if err := s.db.HSet(t.Context(), dead.hash, expired...).Err(); err != nil {
		t.Fatal(err)
	}
	wait(t, "the dead router holds nothing", func() bool {
		var r Reservation
		_, v := other.Reserve(&r, []Limit{k2.of(flight, 100, 1)})
		return v == Admitted
	})
}

// TestLeaseIsToldAgain: after Redis has lost what it knew, it hears again what routers hold.
func TestLeaseIsToldAgain(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, look: 20 * time.Millisecond})
	k := subject(l, "acme", "key")
	limit := k.of(flight, 3, 1)
	for range 3 {
		reserve(t, l, Admitted, limit)
	}
	if err := s.db.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	wait(t, "Redis knows again", func() bool {
		held, _ := counted(t, s, k.Bucket(flight))
		return held == 3
	})
	reserve(t, l, Refused, limit)
}

// TestLeaseReportsOnce: use whose report has no answer is told again, and counts once, whether
// Redis has seen the first report or not.
func TestLeaseReportsOnce(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}})
	for _, arrives := range []bool{true, false} {
		s.db.FlushAll(t.Context())
		k := &keeper{l: l, subjects: map[*Subject]struct{}{}}
		of := subject(l, "acme", "key")
		b := of.Bucket(budget)
		b.limit.Store(1e6)
		b.share.held = 1000
		report := func(arrives, answered bool, held, used int64) {
			t.Helper()
			k.report(of, false)
			k.report(of, false) // which has nothing to tell
			if len(k.calls) != 1 {
				t.Fatalf("%d reports", len(k.calls))
			}
			c, err := k.calls[0], errAway
			k.calls = nil
			if arrives {
				if _, err := l.scripts.run(t.Context(), s.db, c); err != nil {
					t.Fatal(err)
				}
			}
			if answered {
				err = nil
			}
			c.tell(nil, err)
			if h, u := counted(t, s, b); h != held || u != used {
				t.Errorf("Redis counts %d held and %d used, not %d and %d", h, u, held, used)
			}
		}
		b.spent.Add(100)
		if arrives {
			report(true, false, 900, 100)
		} else {
			report(false, false, 0, 0)
		}
		b.spent.Add(7)
		report(true, false, 900, 100)
		report(true, true, 900, 100)
		report(true, true, 893, 107)
	}
}

// TestLeaseRefusals: refusals say what they should, and do not cost a round trip each.
func TestLeaseRefusals(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}})
	k := subject(l, "acme", "key")
	r, _ := reserve(t, l, Admitted, k.of(tpd, 1000, 900), k.of(rpm, 100, 1))
	before := l.Stats()
	for range 1000 {
		_, no := reserve(t, l, Refused, k.of(rpm, 100, 1), k.of(tpd, 1000, 600))
		if no.Limit != 1 || no.Used < 899 || no.Used > 1000 || no.Wait <= 0 || no.Wait > 24*time.Hour || no.Never {
			t.Fatalf("%+v", no)
		}
	}
	if trips := l.Stats().RoundTrips - before.RoundTrips; trips > 500 {
		t.Errorf("%d round trips for 1000 refusals", trips)
	}
	r.Settle(nil)
	wait(t, "there is room again", func() bool {
		var r Reservation
		_, v := l.Reserve(&r, []Limit{k.of(rpm, 100, 1), k.of(tpd, 1000, 600)})
		return v == Admitted
	})
	limit := k.of(tpd, 1000, 600)
	if left := limit.Left(); left.Remaining < 300 || left.Remaining > 410 || left.Reset <= 0 {
		t.Errorf("%+v", left)
	}
}

// TestLeaseAllocatesNothing: a request that a lease suffices for allocates nothing. No keeper runs
// beside it, so the lease is filled by hand.
func TestLeaseAllocatesNothing(t *testing.T) {
	l, err := New(Options{Addresses: []string{"127.0.0.1:1"}}, slog.New(slog.DiscardHandler)) // never asked
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.db.Close() })
	limits := wide(subject(l, "acme", "key"), 10)
	for i := range limits {
		limits[i].Bucket.left.Store(1e6)
	}
	l.until.Store(math.MaxInt64)
	var r Reservation
	used := []int64{1, 5, 5, 1}
	n := testing.AllocsPerRun(1000, func() {
		if _, v := l.Reserve(&r, limits); v != Admitted || r.by != byLease {
			t.Fatalf("verdict %d by %d", v, r.by)
		}
		r.Settle(used)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	for i, want := range []int64{1e6 - 1001, 1e6 - 5*1001, 1e6 - 5*1001, 1e6} {
		if left := limits[i].Bucket.left.Load(); left != want {
			t.Errorf("%d units of limit %d are left, not %d", left, i, want)
		}
	}
}

func BenchmarkLease(b *testing.B) {
	s := startServer(b)
	l, _ := limiter(b, Options{Addresses: []string{s.At}})
	k := subject(l, "acme", "key")
	limits := wide(k, 10)
	warm(b, l, limits...)
	b.ReportAllocs()
	var r Reservation
	used := []int64{1, 5, 5, 1}
	for b.Loop() {
		l.Reserve(&r, limits)
		r.Settle(used)
	}
	b.ReportMetric(float64(l.Stats().RoundTrips)/float64(b.N), "trips/op")
}
