package limits

import (
	"math"
	"sync/atomic"
	"time"
)

// instant is the time of a decision. Rates go by ns of the monotonic clock, which no change of the
// date moves. Budgets go by the month.
type instant struct{ ns, month int64 }

var (
	start  = time.Now()
	latest atomic.Int64 // the month of the last decision
)

// instantOf returns t. Its month is 0 unless budgets need it.
func instantOf(t time.Time, budgets bool) instant {
	at := instant{ns: int64(t.Sub(start))}
	if budgets {
		at.month = monthOf(t)
	}
	return at
}

// monthOf returns the month of t. A clock that goes back across the end of a month does not begin
// the one before anew. One that was ahead by more is believed when it is set right.
func monthOf(t time.Time) int64 {
	year, month, _ := t.UTC().Date()
	now := int64(year)*12 + int64(month) - 1
	for {
		switch was := latest.Load(); {
		case was == now || was == now+1:
			return was
		case latest.CompareAndSwap(was, now):
			return now
		}
	}
}

// monthEnds returns the time until the month ends.
func monthEnds(t time.Time) time.Duration {
	year, month, _ := t.UTC().Date()
	return time.Date(year, month+1, 1, 0, 0, 0, 0, time.UTC).Sub(t)
}

// counter counts what is used of one limit.
//
// Requests and tokens of a window: a unit of a limit of n per window counts for window/n. word is
// the time in ns from which on nothing counts as used (GCRA). So a limit can be used up at once,
// and comes back evenly within its window. word is ahead by more than the window after a request
// has used more than it had reserved, which delays the next ones.
//
// The reserved tokens of running requests are in held, in tokens, and do not come back with time.
// So what running requests have reserved and what has been used never exceed the limit together.
//
// Concurrent requests: held is their number. Budget: word has the month and the tokens used in it.
type counter struct {
	word, held atomic.Int64
	rule       atomic.Pointer[rule] // by which word counts; nil: nothing was counted
}

// cost returns for how many ns n units count.
func (r *rule) cost(n int64) int64 {
	c := math.Ceil(float64(n) * r.unit)
	if n <= r.limit {
		return min(int64(c), r.window)
	}
	return int64(min(c, maxDebt))
}

// maxDebt bounds how far one request can move a word: ten days, in ns.
const maxDebt = float64(10 * day)

// take counts n units if the limit has room for them. If not, over is the time until it has.
func (c *counter) take(r *rule, n int64, at instant) (over int64) {
	switch r.kind {
	case Requests:
		return c.takeNow(r, n, at)
	case InFlight:
		return c.enter(r.limit)
	case Budget:
		return c.takeOfMonth(n, r.limit, at)
	}
	return c.hold(r, n, at)
}

// lacks returns the time until n units have room; 0: they have.
func (c *counter) lacks(r *rule, n int64, at instant) (over int64) {
	switch r.kind {
	case Requests:
		return max(max(c.word.Load(), at.ns)+r.cost(n)-at.ns-r.room, 0)
	case InFlight:
		if c.held.Load() >= r.limit {
			return unknown
		}
		return 0
	case Budget:
		if _, _, used := c.ofMonth(at); used+n > r.limit {
			return never
		}
		return 0
	}
	return c.beyond(r, c.held.Load()+n, at)
}

// The times until there is room of which nothing is known.
const (
	unknown = int64(time.Second) // nobody knows when a running request ends
	never   = math.MaxInt64
)

// takeNow counts n units as used.
func (c *counter) takeNow(r *rule, n int64, at instant) (over int64) {
	cost := r.cost(n)
	for {
		was := c.word.Load()
		next := max(was, at.ns) + cost
		if over := next - at.ns - r.room; over > 0 {
			return over
		}
		if c.word.CompareAndSwap(was, next) {
			return 0
		}
	}
}

// hold counts n tokens as reserved. Requests at the same time count in the order of their
// additions to held, so two of them never take the same room. A request without room adds nothing,
// unless others have just taken it.
func (c *counter) hold(r *rule, n int64, at instant) (over int64) {
	if over = c.beyond(r, c.held.Load()+n, at); over > 0 {
		return over
	}
	if over = c.beyond(r, c.held.Add(n), at); over > 0 {
		c.held.Add(-n)
	}
	return over
}

// beyond returns how far the window is exceeded if this many tokens are reserved, in ns; 0: not.
func (c *counter) beyond(r *rule, held int64, at instant) int64 {
	return max(r.cost(held)+max(c.word.Load()-at.ns, 0)-r.window, 0)
}

// enter counts a request that runs.
func (c *counter) enter(limit int64) (over int64) {
	for {
		n := c.held.Load()
		if n >= limit {
			return unknown
		}
		if c.held.CompareAndSwap(n, n+1) {
			return 0
		}
	}
}

// settle counts that a request has used this many units of those that it has taken. taken is the
// time when it did.
func (c *counter) settle(r *rule, reserved, used int64, taken, at instant) {
	switch r.kind {
	case Requests:
		if used != reserved {
			c.add(r.cost(used)-r.cost(reserved), at)
		}
	case InFlight:
		c.held.Add(-1)
	case Budget:
		c.addOfMonth(used-reserved, taken, at)
	default:
		if used > 0 {
			c.add(r.cost(used), at)
		}
		c.held.Add(-reserved) // last, so that nobody finds both gone
	}
}

// add moves the word, whatever the limit says.
func (c *counter) add(cost int64, at instant) {
	for cost != 0 {
		was := c.word.Load()
		next := was + cost
		if cost > 0 {
			next = max(was, at.ns) + cost
		}
		if c.word.CompareAndSwap(was, next) {
			return
		}
	}
}

// rescale multiplies how far the word is ahead. A lower limit does not lift it above one window, so
// that it does not refuse for longer than that what a higher one has allowed.
func (c *counter) rescale(by float64, window int64, at instant) {
	for {
		was := c.word.Load()
		ahead := max(was-at.ns, 0)
		next := min(math.Ceil(float64(ahead)*by), float64(max(window, ahead)))
		if ahead == 0 || c.word.CompareAndSwap(was, at.ns+int64(next)) {
			return
		}
	}
}

// The word of a budget: the month, then the tokens.
const (
	tokenBits = 44
	tokenMask = 1<<tokenBits - 1
)

// ofMonth returns the month that counts, and the tokens used in it. The word may be one month
// ahead: others have seen the month end.
func (c *counter) ofMonth(at instant) (word, month, used int64) {
	word = c.word.Load()
	month, used = word>>tokenBits, word&tokenMask
	if month != at.month && month != at.month+1 {
		month, used = at.month, 0
	}
	return word, month, used
}

func (c *counter) takeOfMonth(n, limit int64, at instant) (over int64) {
	for {
		word, month, used := c.ofMonth(at)
		if used+n > limit {
			return never
		}
		if c.word.CompareAndSwap(word, month<<tokenBits|(used+n)) {
			return 0
		}
	}
}

// addOfMonth counts n tokens more, or less, of those taken at a time. Another month has nothing of
// them.
func (c *counter) addOfMonth(n int64, taken, at instant) {
	for {
		word, month, used := c.ofMonth(at)
		if month != taken.month {
			return
		}
		used = min(max(used+n, 0), tokenMask)
		if c.word.CompareAndSwap(word, month<<tokenBits|used) {
			return
		}
	}
}

// used returns how many units count, and how long until none does that is not reserved.
func (c *counter) used(r *rule, at instant) (n int64, reset time.Duration) {
	held := c.held.Load()
	switch r.kind {
	case InFlight:
		return held, 0
	case Budget:
		_, _, used := c.ofMonth(at)
		return used, 0
	}
	const tiny = .01 // of a unit; costs are rounded up
	ahead := max(c.word.Load()-at.ns, 0)
	return held + int64(math.Ceil(max(float64(ahead)/r.unit-tiny, 0))), time.Duration(ahead)
}
