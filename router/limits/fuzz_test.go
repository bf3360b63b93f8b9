package limits

import (
	"testing"
	"time"
)

// FuzzSchedule holds a schedule of requests to the promise of each limit. Each four bytes are a
// step: what is asked, how much of it is used, when it ends, and how much time passes before.
//
//   - What is used and what running requests have reserved never exceed the limit together.
//   - Requests, and tokens of requests that use no more than they have reserved, never exceed in
//     any stretch of time what the limit gives at once and what comes back in that time.
//   - After a minute without requests everything is there again.
func FuzzSchedule(f *testing.F) {
	f.Add(uint16(100), []byte{50, 255, 0, 0, 50, 0, 3, 30, 50, 255, 0, 30})
	f.Add(uint16(7), []byte{7, 9, 9, 0, 7, 9, 9, 200, 7, 9, 9, 200, 7, 9, 9, 1, 3, 255, 0, 0, 3, 255, 0, 0})
	f.Fuzz(func(t *testing.T, limit uint16, steps []byte) {
		of := int64(limit) + 1
		now, s := newClock(), subject(Rates{TokensPerMinute: of, RequestsPerMinute: of})
		type ended struct {
			at     time.Time
			tokens int64
		}
		var admitted []time.Time
		var settled []ended
		running := map[int][]func(){} // by the step at whose beginning they end
		reserved := int64(0)
		for i := 0; i+4 <= min(len(steps), 400); i += 4 {
			now.pass(time.Duration(steps[i+3]) * 250 * time.Millisecond)
			for _, end := range running[i/4] {
				end()
			}
			delete(running, i/4)
			u := Use{1, 0, int64(steps[i]) * of / 200}
			r := new(Reservation)
			r.Add(s)
			if _, ok := r.Reserve(u, now.Time); !ok {
				continue
			}
			admitted, reserved = append(admitted, now.Time), reserved+u.Output
			used := Use{1, 0, u.Output * int64(steps[i+1]) / 255}
			end := i/4 + 1 + int(steps[i+2]%16)
			running[end] = append(running[end], func() {
				for range 2 {
					r.Settle(used, now.Time)
				}
				settled, reserved = append(settled, ended{now.Time, used.Output}), reserved-u.Output
			})
			if l := now.left(s, Tokens); l.Remaining > of-reserved {
				t.Fatalf("%d of %d are left, and %d are reserved", l.Remaining, of, reserved)
			}
		}
		for _, ends := range running {
			for _, end := range ends {
				end()
			}
		}
		gives := func(from, to time.Time) float64 { return float64(of) * (1 + to.Sub(from).Minutes()) }
		for i := range admitted {
			for j := i; j < len(admitted); j++ {
				if n := j - i + 1; float64(n) > gives(admitted[i], admitted[j])+.001 {
					t.Fatalf("%d requests of %d in %v", n, of, admitted[j].Sub(admitted[i]))
				}
			}
		}
		for i := range settled {
			sum := int64(0)
			for j := i; j < len(settled); j++ {
				if sum += settled[j].tokens; settled[j].at.Before(settled[i].at) {
					break // those of the last steps, whose order is not that of time
				}
				if float64(sum) > gives(settled[i].at, settled[j].at)+.001 {
					t.Fatalf("%d tokens of %d in %v", sum, of, settled[j].at.Sub(settled[i].at))
				}
			}
		}
		now.pass(time.Minute + time.Microsecond) // costs are rounded up
		if l := now.left(s, Tokens); l.Remaining != of || l.Reset != 0 {
			t.Fatalf("%+v after a minute of rest", l)
		}
	})
}

// FuzzCounter holds the arithmetic of one counter to its bounds, for numbers of any size and a
// clock of any time.
func FuzzCounter(f *testing.F) {
	f.Add(uint8(0), int64(1), int64(5), int64(60), int64(0))
	f.Add(uint8(2), int64(1<<62), int64(1), int64(1<<40), int64(1<<62))
	f.Add(uint8(9), int64(1<<43), int64(1<<40), int64(-1), int64(1<<50))
	f.Fuzz(func(t *testing.T, setting uint8, n, limit, used, ns int64) {
		kind := settings[setting%uint8(len(settings))]
		rates := Rates{}
		*kind.of(&rates) = limit&(1<<39-1) + 1
		s := Subject{Of: OfKey, Limit: NewLimit(rates), Account: new(Account)}
		r, c := &s.Limit.rules[0], &s.Account.counters[setting%uint8(len(settings))]
		at := instant{ns & (1<<61 - 1), ns & 0xffff}
		n, used = n&(1<<62-1), min(used&(1<<62-1), MostUse)
		over := s.take(r, n, at)
		if fits := n <= r.limit || n == 0; (over == 0) != fits || over < 0 {
			t.Fatalf("%s, %d of %d: %d", kind.name, n, r.limit, over)
		}
		if over == 0 && n > 0 {
			c.settle(r, n, used, at, at)
		}
		if have, reset := c.used(r, at); have < 0 || reset < 0 || c.held.Load() != 0 {
			t.Fatalf("%s: %d used, %v, %d held", kind.name, have, reset, c.held.Load())
		}
	})
}
