package limits

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/internal/race"
)

// clock is the time of a test.
type clock struct{ time.Time }

func newClock() *clock {
	latest.Store(0)
	return &clock{start.Add(time.Hour)}
}

func (c *clock) pass(d time.Duration) { c.Time = c.Add(d) }

func subject(rates Rates) Subject {
	return Subject{Of: OfKey, Limit: NewLimit(rates), Account: new(Account)}
}

// ask reserves u, and fails the test if the answer is not as wanted.
func (c *clock) ask(t *testing.T, s Subject, u Use, want bool) (*Reservation, Refusal) {
	t.Helper()
	r := new(Reservation)
	r.Add(s)
	no, ok := r.Reserve(u, c.Time)
	if ok != want {
		t.Errorf("%+v: %v, %+v", u, ok, no)
	}
	return r, no
}

// left returns what is left of a subject's limits of a kind.
func (c *clock) left(s Subject, k Kind) Left {
	var r Reservation
	r.Add(s)
	l, _ := r.Left(k, c.Time)
	return l
}

func (s Subject) running() int64 { return s.Account.counters[8].held.Load() }

func TestRates(t *testing.T) {
	for what, c := range map[string]struct {
		rates   Rates
		u       Use
		most    int // requests that fit at once
		setting string
	}{
		"requests per minute": {Rates{RequestsPerMinute: 7}, Use{1, 9, 9}, 7, "requests_per_minute"},
		"requests per day":    {Rates{RequestsPerDay: 4, RequestsPerMinute: 9}, Use{1, 9, 9}, 4, "requests_per_day"},
		"tokens per minute":   {Rates{TokensPerMinute: 100}, Use{1, 10, 30}, 2, "tokens_per_minute"},
		"tokens per day":      {Rates{TokensPerDay: 120}, Use{1, 10, 30}, 3, "tokens_per_day"},
		"input per minute":    {Rates{InputPerMinute: 20}, Use{1, 10, 1e9}, 2, "input_tokens_per_minute"},
		"input per day":       {Rates{InputPerDay: 30}, Use{1, 10, 1e9}, 3, "input_tokens_per_day"},
		"output per minute":   {Rates{OutputPerMinute: 60}, Use{1, 1e9, 30}, 2, "output_tokens_per_minute"},
		"output per day":      {Rates{OutputPerDay: 90}, Use{1, 1e9, 30}, 3, "output_tokens_per_day"},
		"at a time":           {Rates{Concurrent: 2}, Use{1, 1e9, 1e9}, 2, "concurrent"},
		"per month":           {Rates{Budget: 100, RequestsPerMinute: 9}, Use{1, 10, 30}, 2, "budget"},
	} {
		t.Run(what, func(t *testing.T) {
			now, s := newClock(), subject(c.rates)
			var all []*Reservation
			for range c.most {
				r, _ := now.ask(t, s, c.u, true)
				all = append(all, r)
			}
			_, no := now.ask(t, s, c.u, false)
			if no.Setting != c.setting || no.Used != int64(c.most)*no.Asked || no.Never() ||
				no.Asked != c.u.of(no.Kind) {
				t.Errorf("%+v", no)
			}
			if no.Kind == InFlight {
				all[0].Settle(Use{}, now.Time)
				all[0].Settle(Use{}, now.Time) // once only
				now.ask(t, s, c.u, true)
				now.ask(t, s, c.u, false)
				return
			}
			for _, r := range all {
				r.Settle(c.u, now.Time)
			}
			now.pass(no.Wait - time.Millisecond)
			now.ask(t, s, c.u, false)
			now.pass(time.Millisecond + 10)
			now.ask(t, s, c.u, true)
		})
	}
}

// TestSettle: what is not used comes back, what is used beyond is a debt, and a second settlement
// changes nothing.
func TestSettle(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerMinute: 100, Concurrent: 9})
	r, _ := now.ask(t, s, Use{1, 10, 90}, true)
	now.ask(t, s, Use{1, 0, 1}, false)
	for range 2 {
		r.Settle(Use{1, 10, 10}, now.Time)
	}
	if left := now.left(s, Tokens); left != (Left{100, 80, 12 * time.Second}) {
		t.Errorf("%+v", left)
	}
	r, _ = now.ask(t, s, Use{1, 10, 70}, true)
	r.Settle(Use{1, 10, 190}, now.Time) // 220 of 100 are used
	if _, no := now.ask(t, s, Use{1, 0, 1}, false); no.Wait.Round(time.Second) != 73*time.Second {
		t.Errorf("%+v", no)
	}
	now.pass(73 * time.Second)
	now.ask(t, s, Use{1, 0, 1}, true)
	if _, no := now.ask(t, s, Use{1, 50, 51}, false); !no.Never() || no.Wait != 0 {
		t.Errorf("%+v", no)
	}
	if n := s.running(); n != 1 {
		t.Errorf("%d requests at a time", n)
	}
}

// TestSettleBounds: what an engine counts below nothing, or beyond all bounds, harms no counter.
func TestSettleBounds(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerMinute: 100, Budget: 100})
	r, _ := now.ask(t, s, Use{1, 10, 10}, true)
	r.Settle(Use{1, -50, 30}, now.Time)
	if l := now.left(s, Tokens); l.Remaining != 70 {
		t.Errorf("%+v", l)
	}
	now.ask(t, s, Use{1, 0, 71}, false)
	r, _ = now.ask(t, s, Use{1, 10, 10}, true)
	r.Settle(Use{1, 1 << 62, 1 << 62}, now.Time)
	if l := now.left(s, Tokens); l.Remaining != 0 || l.Reset > 20*day {
		t.Errorf("%+v", l)
	}
}

// TestReservedStays: tokens that a running request has reserved do not come back with time, so an
// old request that ends gives nobody more than the limit.
func TestReservedStays(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerMinute: 100})
	old, _ := now.ask(t, s, Use{1, 0, 50}, true)
	now.pass(10 * time.Minute)
	young, _ := now.ask(t, s, Use{1, 0, 50}, true)
	now.ask(t, s, Use{1, 0, 1}, false)
	young.Settle(Use{1, 0, 50}, now.Time)
	old.Settle(Use{}, now.Time)
	now.ask(t, s, Use{1, 0, 51}, false)
	now.ask(t, s, Use{1, 0, 50}, true)
}

// TestAllOrNothing: a refused request leaves nothing counted with the other subjects, and its
// answer is that of the limit that refuses for the longest time.
func TestAllOrNothing(t *testing.T) {
	now := newClock()
	wide := subject(Rates{RequestsPerMinute: 10, TokensPerMinute: 100, Concurrent: 5, Budget: 1000})
	tight := subject(Rates{RequestsPerMinute: 5, OutputPerMinute: 3})
	tight.Of = OfModel
	for range 20 {
		var r Reservation
		r.Add(wide)
		r.Add(tight)
		if no, ok := r.Reserve(Use{1, 4, 4}, now.Time); ok || no.Setting != "output_tokens_per_minute" || !no.Never() ||
			no.Of != OfModel {
			t.Fatalf("%+v, %v", no, ok)
		}
		r.Settle(Use{1, 4, 4}, now.Time)
	}
	for _, s := range []Subject{wide, tight} {
		if l := now.left(s, Requests); l.Remaining != l.Limit || s.running() != 0 {
			t.Errorf("%+v, %d", l, s.running())
		}
	}
	if _, _, used := wide.Account.counters[9].ofMonth(instantOf(now.Time, true)); used != 0 {
		t.Errorf("%d of the budget are used", used)
	}
	short, long := subject(Rates{RequestsPerMinute: 1}), subject(Rates{TokensPerDay: 10})
	both := func() (Refusal, bool) {
		var r Reservation
		r.Add(short)
		r.Add(long)
		return r.Reserve(Use{1, 10, 0}, now.Time)
	}
	both()
	if no, ok := both(); ok || no.Setting != "tokens_per_day" {
		t.Errorf("%+v, %v", no, ok)
	}
}

// TestMonth: a budget begins anew with the month, and a request across its end changes only the
// month in which it began.
func TestMonth(t *testing.T) {
	now, s := newClock(), subject(Rates{Budget: 100})
	now.Time = time.Date(2031, 12, 31, 23, 59, 0, 0, time.UTC)
	r, _ := now.ask(t, s, Use{1, 0, 60}, true)
	_, no := now.ask(t, s, Use{1, 0, 60}, false)
	if no.Wait != time.Minute || no.Never() || no.Used != 60 {
		t.Errorf("%+v", no)
	}
	if _, no := now.ask(t, s, Use{1, 0, 101}, false); !no.Never() {
		t.Errorf("%+v", no)
	}
	now.pass(time.Minute)
	young, _ := now.ask(t, s, Use{1, 0, 100}, true)
	r.Settle(Use{}, now.Time)
	now.ask(t, s, Use{1, 0, 1}, false)
	young.Settle(Use{1, 0, 300}, now.Time)
	now.ask(t, s, Use{1, 0, 1}, false)
	now.pass(31 * day)
	now.ask(t, s, Use{1, 0, 100}, true)
}

// TestClockJumps: a clock that goes back across the end of a month gives nothing back and takes
// nothing away. One that has been far ahead takes nothing from the months after.
func TestClockJumps(t *testing.T) {
	now, s := newClock(), subject(Rates{Budget: 100})
	now.Time = time.Date(2031, 5, 20, 0, 0, 0, 0, time.UTC)
	admitted := int64(0)
	try := func(s Subject, u Use) (ok bool) {
		var r Reservation
		r.Add(s)
		if _, ok = r.Reserve(u, now.Time); ok {
			r.Settle(u, now.Add(-time.Hour))
		}
		return ok
	}
	for range 20 {
		for _, jump := range []time.Duration{40 * day, -40 * day, 12 * day, -12 * day, -10 * time.Second} {
			now.pass(jump)
			for range 20 {
				if try(s, Use{1, 5, 5}) {
					admitted += 10
				}
			}
		}
	}
	if admitted != 100 { // in June, the latest month, which goes on
		t.Errorf("%d tokens of a budget of 100", admitted)
	}
	now, s = newClock(), subject(Rates{Budget: 100})
	now.Time = time.Date(2031, 5, 20, 0, 0, 0, 0, time.UTC)
	try(s, Use{1, 30, 30})
	now.pass(4000 * day)
	early, _ := now.ask(t, s, Use{1, 0, 90}, true)
	now.pass(-4000 * day)
	now.ask(t, s, Use{1, 0, 100}, true)
	early.Settle(Use{}, now.Time) // of a month that is not
	now.ask(t, s, Use{1, 0, 1}, false)
	now.pass(20 * day)
	now.ask(t, s, Use{1, 0, 100}, true)
	now, s = newClock(), subject(Rates{Budget: 100})
	now.Time = time.Date(2031, 6, 10, 0, 0, 0, 0, time.UTC)
	try(s, Use{1, 30, 30})
	now.pass(-20 * day)
	r, _ := now.ask(t, s, Use{1, 0, 40}, true)
	now.ask(t, s, Use{1, 0, 1}, false)
	r.Settle(Use{1, 0, 10}, now.Time)
	now.ask(t, s, Use{1, 0, 31}, false)
	now.ask(t, s, Use{1, 0, 30}, true)

	// A request that was late to note that the month has ended.
	var month counter
	month.takeOfMonth(60, 100, instant{month: 6})
	if month.takeOfMonth(60, 100, instant{month: 5}) == 0 {
		t.Error("the end of the month gives a budget twice")
	}

	now, s = newClock(), subject(Rates{RequestsPerMinute: 10, TokensPerMinute: 1000})
	n := 0
	for range 100 {
		if try(s, Use{1, 5, 5}) {
			n++
		}
		now.pass(-7 * time.Second)
	}
	if n > 10 {
		t.Errorf("%d requests of 10", n)
	}
}

// TestWallClockJumps: rates go by the monotonic clock, so a date that is set ahead gives nothing.
func TestWallClockJumps(t *testing.T) {
	now, s := time.Now(), subject(Rates{RequestsPerDay: 10, TokensPerDay: 1000})
	// The wall clock of a time.Time has its seconds above 30 bits of ns.
	ahead := now
	*(*uint64)(unsafe.Pointer(&ahead)) += 86400 << 30
	if !ahead.Equal(now) || ahead.Unix() != now.Unix()+86400 {
		t.Fatalf("%v is not %v with another date", ahead, now)
	}
	var r Reservation
	r.Add(s)
	if _, ok := r.Reserve(Use{10, 500, 500}, now); !ok {
		t.Fatal("no room")
	}
	r.Settle(Use{10, 500, 500}, now)
	r = Reservation{}
	r.Add(s)
	if _, ok := r.Reserve(Use{1, 1, 0}, ahead); ok {
		t.Error("another date gives a day's limits")
	}
}

// TestFloodOfTenants: tenants beyond the bound share an account, and take no memory.
func TestFloodOfTenants(t *testing.T) {
	var b Book
	b.Put(Settings{Tables: []Table{{Tenant: EachTenant, Rates: Rates{RequestsPerDay: 1}}}})
	now := newClock()
	admitted := 0
	for i := range maxAccounts + 1000 {
		var r Reservation
		b.Add(&r, fmt.Sprint("tenant ", i), "m")
		if _, ok := r.Reserve(Use{1, 0, 0}, now.Time); ok {
			admitted++
		}
	}
	var further Reservation
	another := fmt.Sprint("tenant ", maxAccounts+1)
	n := testing.AllocsPerRun(100, func() { further.n = 0; b.Add(&further, another, "m") })
	if n != 0 && !race.Enabled || further.n != 1 {
		t.Errorf("%v allocations, %d subjects", n, further.n)
	}
	known := 0
	b.now.Load().each.Range(func(any, any) bool { known++; return true })
	if n := b.Accounts(); n > maxAccounts+1 || known > maxAccounts || admitted != maxAccounts+1 {
		t.Errorf("%d accounts, %d tenants are known, and %d requests were admitted", n, known, admitted)
	}
	b.Put(Settings{Tables: []Table{{Tenant: EachTenant, Rates: Rates{RequestsPerDay: 3}}}})
	var again Reservation
	b.Add(&again, "tenant 5", "m")
	again.Reserve(Use{1, 0, 0}, now.Time)
	for tenant, want := range map[string]int64{"tenant 5": 1, fmt.Sprint("tenant ", maxAccounts+9): 2, "new": 2} {
		var r Reservation
		b.Add(&r, tenant, "m")
		if l, _ := r.Left(Requests, now.Time); l.Remaining != want {
			t.Errorf("%s: %+v", tenant, l)
		}
	}
}

// TestOutput checks how many tokens a request reserves for an answer.
func TestOutput(t *testing.T) {
	var b Book
	b.Put(Settings{Output: 4096, Caps: map[string]int64{"capped": 50}})
	for _, c := range []struct {
		model       string
		named, want int64
	}{
		{"capped", 0, 50}, {"capped", 20, 20}, {"capped", 1 << 60, 50}, {"other", 0, 4096}, {"other", 1 << 60, 1 << 60},
	} {
		if got := b.Output(c.model, c.named); got != c.want {
			t.Errorf("%s, %d: %d, not %d", c.model, c.named, got, c.want)
		}
	}
}

// TestOneWins: of two requests at the same instant that each need the whole limit, one is admitted
// at most.
func TestOneWins(t *testing.T) {
	for what, rates := range map[string]Rates{
		"tokens": {TokensPerMinute: 10}, "requests": {RequestsPerDay: 1}, "at a time": {Concurrent: 1},
		"budget": {Budget: 10},
	} {
		t.Run(what, func(t *testing.T) {
			for range 5 {
				oneWins(t, rates)
			}
		})
	}
}

func oneWins(t *testing.T, rates Rates) {
	rounds := 30000
	if race.Enabled {
		rounds = 1000 // the detector finds no race here, and the scheduler is slow
	}
	now := newClock()
	subjects := make([]Subject, rounds)
	for i := range subjects {
		subjects[i] = subject(rates)
	}
	won, arrived := make([]atomic.Int32, rounds), make([]atomic.Int32, rounds)
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			for i := range rounds {
				var r Reservation
				r.Add(subjects[i])
				arrived[i].Add(1)
				for spins := 0; arrived[i].Load() < 2 && spins < 1000; spins++ { // both begin at the same instant
				}
				if _, ok := r.Reserve(Use{1, 0, 10}, now.Time); ok {
					won[i].Add(1)
				}
			}
		})
	}
	all.Wait()
	for i := range won {
		if n := won[i].Load(); n > 1 {
			t.Fatalf("round %d: %d won", i, n)
		}
	}
}

// TestTogether: requests at the same instant never reserve more than a limit.
func TestTogether(t *testing.T) {
	now := newClock()
	s := subject(Rates{TokensPerDay: 1000, RequestsPerDay: 5000, Budget: 900, Concurrent: 64})
	var all sync.WaitGroup
	var mu sync.Mutex
	kept, requests := int64(0), int64(0)
	for i := range 100 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 100 {
				var r Reservation
				r.Add(s)
				u := Use{1, random.Int64N(20), random.Int64N(20)}
				if _, ok := r.Reserve(u, now.Time); !ok {
					continue
				}
				if n := s.running(); n > 64 {
					t.Errorf("%d at a time", n)
				}
				if random.IntN(20) > 0 {
					r.Settle(Use{}, now.Time)
					continue
				}
				mu.Lock()
				kept, requests = kept+u.Input+u.Output, requests+1
				mu.Unlock()
				r.Settle(u, now.Time)
			}
		})
	}
	all.Wait()
	if kept > 900 || kept < 860 {
		t.Errorf("%d tokens of 900", kept)
	}
	if l := now.left(s, Requests); l.Remaining != 5000-requests {
		t.Errorf("%+v after %d requests", l, requests)
	}
	if l := now.left(s, Tokens); l.Remaining != 1000-kept || s.running() != 0 {
		t.Errorf("%+v after %d tokens; %d run", l, kept, s.running())
	}
}

// TestHugeRequestsDisturbNobody: a request that can never fit leaves no trace, however large it is.
func TestHugeRequestsDisturbNobody(t *testing.T) {
	now, s := newClock(), subject(Rates{TokensPerMinute: 100, Budget: 100})
	for _, n := range []int64{101, MostUse, 2 * MostUse} {
		if _, no := now.ask(t, s, Use{1, n, 0}, false); !no.Never() {
			t.Errorf("%+v", no)
		}
	}
	r, _ := now.ask(t, s, Use{1, 50, 50}, true)
	r.Settle(Use{1, 1 << 62, 1 << 62}, now.Time) // an engine's lie
	now.ask(t, s, Use{1, 1, 0}, false)
	if held := s.Account.counters[2].held.Load(); held != 0 {
		t.Errorf("%d are held", held)
	}
}

func TestParse(t *testing.T) {
	r, err := Parse([]string{"tokens_per_minute=30000", "concurrent=4", "budget=1000000"})
	if want := (Rates{TokensPerMinute: 30000, Concurrent: 4, Budget: 1000000}); err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	if again, err := Parse(r.Texts()); err != nil || again != r {
		t.Errorf("%v: %+v, %v", r.Texts(), again, err)
	}
	for text, want := range map[string]string{
		"tpm=5": "is no limit", "concurrent": "whole number", "concurrent=0": "whole number",
		"concurrent=-1":  "whole number",
		"concurrent=1e3": "whole number", "budget=9999999999999": "whole number",
	} {
		if _, err := Parse([]string{text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Parse([]string{"budget=1", "budget=2"}); err == nil {
		t.Error("a limit twice")
	}
	bad := Rates{RequestsPerDay: -1, Budget: most + 1}
	if err := bad.Check(); err == nil || !strings.Contains(err.Error(), "requests_per_day: -1") ||
		!strings.Contains(err.Error(), "budget: ") {
		t.Error(err)
	}
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	if NewLimit(Rates{}) != nil {
		t.Error("a limit of nothing")
	}
}

func TestReserveAllocatesNothing(t *testing.T) {
	s, now := subject(Rates{RequestsPerMinute: 1 << 39, TokensPerMinute: 1 << 39, Concurrent: 9}), newClock()
	if n := testing.AllocsPerRun(100, func() {
		var r Reservation
		r.Add(s)
		r.Reserve(Use{1, 10, 10}, now.Time)
		r.Left(Tokens, now.Time)
		r.Settle(Use{1, 10, 5}, now.Time)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkReserve(b *testing.B) {
	for subjects := 1; subjects <= int(scopes); subjects++ {
		b.Run(fmt.Sprint(subjects), func(b *testing.B) {
			s := subject(Rates{RequestsPerMinute: 1 << 39, TokensPerMinute: 1 << 39, Concurrent: 9})
			b.ReportAllocs()
			for b.Loop() {
				var r Reservation
				for range subjects {
					r.Add(s)
				}
				now := time.Now()
				r.Reserve(Use{1, 10, 10}, now)
				r.Settle(Use{1, 10, 5}, now)
			}
		})
	}
}

// TestWithin: what is within all limits has room when nothing is used.
func TestWithin(t *testing.T) {
	c := newClock()
	for i, x := range []struct {
		rates         Rates
		input, output int64
	}{
		{Rates{RequestsPerMinute: 1, Concurrent: 1}, 82000, 8200},
		{Rates{TokensPerMinute: 90200}, 82000, 8200},
		{Rates{TokensPerMinute: 60000}, 60000, 0},
		{Rates{TokensPerMinute: 85000, Budget: 84000}, 82000, 2000},
		{Rates{InputPerDay: 50000, OutputPerMinute: 100, TokensPerDay: 50050}, 50000, 0},
	} {
		s := subject(x.rates)
		var r Reservation
		r.Add(s)
		u := r.Within(Use{1, 82000, 8200})
		if u != (Use{1, x.input, x.output}) {
			t.Errorf("%d: %+v", i, u)
		}
		c.ask(t, s, u, true)
	}
}
