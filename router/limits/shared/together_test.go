package shared

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestTogether: 200 clients of two routers never hold and use more than a limit, in both modes.
// Beyond it is only what comes back within the time of the test, and what engines count above what
// was reserved.
func TestTogether(t *testing.T) {
	s := startServer(t)
	for mode, by := range map[string]by{"exact": byRedis, "lease": byLease} {
		for _, rule := range []int{budget, tpm} {
			for _, over := range []int64{0, 12} {
				t.Run(fmt.Sprintf("%s %s %d%%", mode, standard[rule].Name, over), func(t *testing.T) {
					testTogether(t, s, by, rule, over)
				})
			}
		}
	}
}

// testTogether has engines count up to over percent more than was reserved.
func testTogether(t *testing.T, s *server, by by, rule int, over int64) {
	const limit = 10000
	o := Options{Addresses: []string{s.At}, Exact: by == byRedis, Timeout: 20 * time.Second}
	a, endA := limiter(t, o)
	b, endB := limiter(t, o)
	name := t.Name()
	routers, ours := [...]*Limiter{a, b}, [...]*Subject{subject(a, "acme", name), subject(b, "acme", name)}
	var all sync.WaitGroup
	var within, above, most, flying, mostFlying, refused atomic.Int64
	began := now()
	for client := range 200 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(client)))
			l, k := routers[client%2], ours[client%2]
			for range 20 {
				n := 1 + random.Int64N(200)
				var r Reservation
				_, v := l.Reserve(&r, []Limit{k.of(rule, limit, n), k.of(flight, 64, 1)})
				if v == Refused {
					refused.Add(1)
					time.Sleep(time.Duration(random.Int64N(int64(10 * time.Millisecond))))
					continue
				}
				if v != Admitted || r.by != by {
					t.Errorf("verdict %d by %d", v, r.by)
				}
				raise(&most, within.Add(n))
				raise(&mostFlying, flying.Add(1))
				time.Sleep(time.Duration(random.Int64N(int64(time.Millisecond))))
				used := random.Int64N(n + n*over/100 + 1)
				within.Add(min(used, n) - n)
				above.Add(max(used-n, 0))
				flying.Add(-1)
				r.Settle([]int64{used, 0})
			}
		})
	}
	all.Wait()
	settled(t, a)
	settled(t, b)
	endA()
	endB()
	held, used := counted(t, s, ours[0].Bucket(rule))
	back := int64(0) // at most, so far
	if rule == tpm {
		back = (now()-began)*limit/int64(time.Minute) + 1
	}
	t.Logf("at most %d tokens of %d reserved or used, %d came back, engines counted %d above; %d at a time; %d refused",
		most.Load(), limit, back, above.Load(), mostFlying.Load(), refused.Load())
	if n := most.Load(); n > limit+back || n < limit*9/10 {
		t.Errorf("%d tokens of %d, of which %d came back", n, limit, back)
	}
	if n := mostFlying.Load(); n > 64 {
		t.Errorf("%d at a time", n)
	}
	if n := within.Load() + above.Load(); held != 0 || used > n || used < n-back {
		t.Errorf("Redis counts %d held and %d used, the clients %d", held, used, n)
	}
	if held, _ := counted(t, s, ours[0].Bucket(flight)); held != 0 {
		t.Errorf("%d are left in flight", held)
	}
}

// raise makes most at least n.
func raise(most *atomic.Int64, n int64) {
	for was := most.Load(); n > was && !most.CompareAndSwap(was, n); was = most.Load() {
	}
}
