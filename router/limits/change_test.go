package limits

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestChangedLimit: what is used stays used in an account with another limit, and what runs
// settles.
func TestChangedLimit(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerMinute: 100, RequestsPerMinute: 10})
	r, _ := now.ask(t, s, Use{1, 0, 50}, true)
	r.Settle(Use{1, 0, 20}, now.Time)
	r, _ = now.ask(t, s, Use{1, 0, 30}, true)
	next := NewLimit(Rates{TokensPerMinute: 1000, RequestsPerMinute: 100})
	s.Account.Rescale(next, now.Time)
	s.Limit = next
	if l := now.left(s, Tokens); l.Remaining != 950 || now.left(s, Requests).Remaining != 98 {
		t.Errorf("%+v", l)
	}
	r.Settle(Use{}, now.Time)
	if l := now.left(s, Tokens); l.Remaining != 980 {
		t.Errorf("%+v", l)
	}
	r, _ = now.ask(t, s, Use{1, 0, 50}, true)
	s.Limit = nil
	r.Settle(Use{}, now.Time)
	s.Limit = NewLimit(Rates{TokensPerMinute: 1000})
	if l := now.left(s, Tokens); l.Remaining != 980 {
		t.Errorf("%+v", l)
	}
}

// TestLoweredLimit: a lower limit refuses for one window at most what a higher one has allowed, and
// for as long as before what nobody has allowed.
func TestLoweredLimit(t *testing.T) {
	for _, used := range []int64{100000, 300000} {
		now, s := newClock(), subject(Rates{TokensPerMinute: 100000, RequestsPerMinute: 600})
		r, _ := now.ask(t, s, Use{600, 0, 100000}, true)
		r.Settle(Use{600, 0, used}, now.Time)
		s.Limit = NewLimit(Rates{TokensPerMinute: 4000, RequestsPerMinute: 6})
		s.Account.Rescale(s.Limit, now.Time)
		now.ask(t, s, Use{Output: 1}, false)
		if used > 100000 {
			now.pass(119 * time.Second)
			now.ask(t, s, Use{Output: 1}, false)
		}
		now.pass(time.Minute + time.Second)
		now.ask(t, s, Use{6, 0, 4000}, true)
	}
}

// TestSettleAfterChange: a request that runs while its limit changes counts for what it has used,
// and so does one that found its subject before.
func TestSettleAfterChange(t *testing.T) {
	for _, limit := range []int64{1000, 50} {
		now, s := newClock(), subject(Rates{TokensPerMinute: 100, RequestsPerMinute: 100})
		running, _ := now.ask(t, s, Use{1, 10, 20}, true)
		early := new(Reservation)
		early.Add(s)
		next := NewLimit(Rates{TokensPerMinute: limit, RequestsPerMinute: limit})
		s.Account.Rescale(next, now.Time)
		if _, ok := early.Reserve(Use{2, 5, 5}, now.Time); !ok {
			t.Error("no room for the early request")
		}
		s.Limit = next
		running.Settle(Use{0, 10, 20}, now.Time)
		early.Settle(Use{2, 5, 0}, now.Time)
		if l := now.left(s, Tokens); l.Limit != limit || l.Remaining != limit-35 {
			t.Errorf("tokens: %+v", l)
		}
		if l := now.left(s, Requests); l.Remaining != limit-2 {
			t.Errorf("requests: %+v", l)
		}
	}
}

// TestLimitComesBack: a limit that was away for a while has the units that were used before.
func TestLimitComesBack(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerDay: 100, RequestsPerDay: 5})
	r, _ := now.ask(t, s, Use{1, 0, 20}, true)
	r.Settle(Use{1, 0, 20}, now.Time)
	for _, rates := range []Rates{{RequestsPerDay: 5}, {}, {TokensPerDay: 1000}} {
		s.Limit = NewLimit(rates)
		s.Account.Rescale(s.Limit, now.Time)
	}
	if l := now.left(s, Tokens); l.Remaining != 980 {
		t.Errorf("%+v", l)
	}
}

// TestAddDuringPut: a tenant's first request that meets a change of the settings is held to the new
// ones.
func TestAddDuringPut(t *testing.T) {
	var b Book
	put := func(limit int64) {
		all := []Table{{Tenant: EachTenant, Rates: Rates{RequestsPerDay: limit}}}
		for i := range 2000 { // so that Put takes its time
			all = append(all, Table{Model: fmt.Sprint("model ", i), Rates: Rates{RequestsPerDay: 1}})
		}
		b.Put(Settings{Tables: all})
	}
	put(1)
	for i := range int64(20) {
		limit := i + 2
		var of Reservation
		var all sync.WaitGroup
		all.Go(func() { put(limit) })
		for b.mu.TryLock() { // until Put has it
			b.mu.Unlock()
			runtime.Gosched()
			if b.now.Load().like[0].Rates.RequestsPerDay == limit {
				break
			}
		}
		b.Add(&of, fmt.Sprint("tenant ", i), "m")
		all.Wait()
		if is := of.subjects[0].rule(0); is.limit != limit {
			t.Fatalf("the limit is %d, not %d", is.limit, limit)
		}
	}
}
