package limits

import (
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs f in a bubble whose clock is that of the package.
func bubble(t *testing.T, f func(t *testing.T)) {
	was := start
	defer func() { start = was }()
	synctest.Test(t, func(t *testing.T) {
		start = time.Now().Add(-10 * day)
		f(t)
	})
}

// ask reserves u, and fails the test if the answer is not as wanted.
func ask(t *testing.T, s Subject, u Use, want bool) (r Reservation, no Refusal) {
	t.Helper()
	no, ok := r.Reserve(u, s)
	if ok != want {
		t.Errorf("%+v: %v, %+v", u, ok, no)
	}
	return r, no
}

func TestRates(t *testing.T) {
	for what, c := range map[string]struct {
		rates  Rates
		u      Use
		most   int // requests that fit at once
		kind   Kind
		window time.Duration
	}{
		"requests per minute": {Rates{RequestsPerMinute: 3}, Use{1, 9, 9}, 3, Requests, time.Minute},
		"requests per day":    {Rates{RequestsPerDay: 4, RequestsPerMinute: 9}, Use{1, 9, 9}, 4, Requests, day},
		"tokens per minute":   {Rates{TokensPerMinute: 100}, Use{1, 10, 30}, 2, Tokens, time.Minute},
		"tokens per day":      {Rates{TokensPerDay: 120}, Use{1, 10, 30}, 3, Tokens, day},
		"input per minute":    {Rates{InputPerMinute: 20}, Use{1, 10, 1e9}, 2, Input, time.Minute},
		"output per day":      {Rates{OutputPerDay: 90, OutputPerMinute: 1000}, Use{1, 1e9, 30}, 3, Output, day},
		"at a time":           {Rates{Concurrent: 2}, Use{1, 1e9, 1e9}, 2, InFlight, 0},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				s := Subject{new(Account), &c.rates}
				var all []Reservation
				for range c.most {
					r, _ := ask(t, s, c.u, true)
					all = append(all, r)
				}
				_, no := ask(t, s, c.u, false)
				if no.Kind != c.kind || no.Window != c.window || no.Used != int64(c.most)*max(c.u.of(c.kind), 1) || no.Never() {
					t.Errorf("%+v", no)
				}
				if c.kind == InFlight {
					all[0].Settle(Use{})
					all[0].Settle(Use{}) // once only
					ask(t, s, c.u, true)
					ask(t, s, c.u, false)
					return
				}
				time.Sleep(no.Wait - time.Millisecond)
				ask(t, s, c.u, false)
				time.Sleep(time.Millisecond)
				ask(t, s, c.u, true)
			})
		})
	}
}

// TestSettle: what is not used comes back, and what is used beyond is a debt.
func TestSettle(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := Subject{new(Account), &Rates{TokensPerMinute: 100}}
		r, _ := ask(t, s, Use{1, 10, 90}, true)
		ask(t, s, Use{1, 0, 1}, false)
		r.Settle(Use{1, 10, 10})
		if left, ok := s.left(s.Rates, Tokens, now()); !ok || left.Remaining != 80 || left.Reset != 12*time.Second {
			t.Errorf("%+v, %v", left, ok)
		}
		r, _ = ask(t, s, Use{1, 10, 70}, true)
		r.Settle(Use{1, 10, 190}) // 220 of 100 are used
		if _, no := ask(t, s, Use{1, 0, 1}, false); no.Wait.Round(time.Second) != 73*time.Second {
			t.Errorf("%+v", no)
		}
		time.Sleep(73 * time.Second)
		ask(t, s, Use{1, 0, 1}, true)
		if _, no := ask(t, s, Use{1, 50, 51}, false); !no.Never() {
			t.Errorf("%+v", no)
		}
		if n := s.InFlight(); n != 1 {
			t.Errorf("%d requests at a time", n)
		}
	})
}

// TestAllOrNothing: a refused request leaves nothing counted with the other subjects.
func TestAllOrNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		wide := Subject{new(Account), &Rates{RequestsPerMinute: 10, TokensPerMinute: 100, Concurrent: 5}}
		tight := Subject{new(Account), &Rates{RequestsPerMinute: 5, OutputPerMinute: 3}}
		for range 20 {
			var r Reservation
			if no, ok := r.Reserve(Use{1, 4, 4}, wide, tight); ok || no.Kind != Output || !no.Never() {
				t.Fatalf("%+v, %v", no, ok)
			}
		}
		for _, s := range []Subject{wide, tight} {
			if l, _ := s.left(s.Rates, Requests, now()); l.Remaining != l.Limit || s.InFlight() != 0 {
				t.Errorf("%+v, %d", l, s.InFlight())
			}
		}
	})
}

// TestTogether: requests at the same instant never reserve more than a limit.
func TestTogether(t *testing.T) {
	s := Subject{new(Account), &Rates{TokensPerDay: 1000, Concurrent: 64}}
	var all sync.WaitGroup
	var mu sync.Mutex
	reserved := int64(0)
	for i := range 200 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 50 {
				var r Reservation
				u := Use{1, random.Int64N(20), random.Int64N(20)}
				if _, ok := r.Reserve(u, s); !ok {
					continue
				}
				if n := s.InFlight(); n > 64+200 { // those that are about to be refused count too
					t.Errorf("%d at a time", n)
				}
				keep := random.IntN(2) == 0
				if keep {
					mu.Lock()
					reserved += u.Input + u.Output
					mu.Unlock()
					r.Settle(u)
				} else {
					r.Settle(Use{})
				}
			}
		})
	}
	all.Wait()
	if reserved > 1000+1 || reserved < 960 { // a token comes back each 86 s
		t.Errorf("%d tokens of 1000", reserved)
	}
	if s.InFlight() != 0 {
		t.Errorf("%d are left at a time", s.InFlight())
	}
}

func FuzzBucket(f *testing.F) {
	f.Add(int64(1), int64(5), int64(60), int64(0))
	f.Add(int64(1<<62), int64(1), int64(1<<40), int64(1<<62))
	f.Fuzz(func(t *testing.T, n, limit, window, at int64) {
		n, at = n&(1<<62-1), at&(1<<61-1)
		limit, window = limit&(1<<50-1)+1, window&(1<<47-1)+1
		var b bucket
		at += int64(10 * day)
		wait, ok := b.take(n, limit, time.Duration(window), at)
		if ok != (wait == 0) || wait < 0 || ok && n > limit+limit/1e9+1 {
			t.Errorf("%d of %d per %d: %v, %v", n, limit, window, wait, ok)
		}
		b.add(n, limit, time.Duration(window), at)
		used, reset := b.used(limit, time.Duration(window), at)
		if used < 0 || reset < 0 {
			t.Errorf("%d used, %v", used, reset)
		}
	})
}

func TestReserveAllocatesNothing(t *testing.T) {
	s := Subject{new(Account), &Rates{RequestsPerMinute: 1 << 40, TokensPerMinute: 1 << 40, Concurrent: 9}}
	if n := testing.AllocsPerRun(100, func() {
		var r Reservation
		r.Reserve(Use{1, 10, 10}, s, s)
		r.Settle(Use{1, 10, 5})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReserve(b *testing.B) {
	s := Subject{new(Account), &Rates{RequestsPerMinute: 1 << 40, TokensPerMinute: 1 << 40, Concurrent: 9}}
	b.ReportAllocs()
	for b.Loop() {
		var r Reservation
		r.Reserve(Use{1, 10, 10}, s)
		r.Settle(Use{1, 10, 5})
	}
}
