package limits

import (
	"math"
	"sync/atomic"
	"time"
)

// bucket counts what is used of a limit, in one word: the time, in ns since the start of the
// process, at which nothing will count as used any more. A unit of a limit of n per window counts
// for window/n. So a limit can be used up at once, and comes back evenly within its window.
//
// The word is behind the present while nothing is used. It can be ahead by more than the window:
// what was used beyond what was reserved delays the next requests.
type bucket struct{ free atomic.Int64 }

// cost returns for how long n units of a limit count.
func cost(n, limit int64, window time.Duration) int64 {
	c := math.Ceil(math.Abs(float64(n)) * (float64(window) / float64(limit)))
	return int64(math.Copysign(min(c, maxDebt), float64(n)))
}

// maxDebt bounds what one request can add to a word, in ns: ten days.
const maxDebt = float64(10 * 24 * time.Hour)

// take counts n units if the limit has room for them. If it has not, take returns how long it will
// take until it has, if nobody else takes any.
func (b *bucket) take(n, limit int64, window time.Duration, now int64) (wait time.Duration, ok bool) {
	c := cost(n, limit, window)
	for {
		was := b.free.Load()
		next := max(was, now) + c
		if over := next - now - int64(window); over > 0 {
			return time.Duration(over), false
		}
		if b.free.CompareAndSwap(was, next) {
			return 0, true
		}
	}
}

// add counts n units more, or less if n is negative, whatever the limit says.
func (b *bucket) add(n, limit int64, window time.Duration, now int64) {
	c := cost(n, limit, window)
	for {
		was := b.free.Load()
		next := was + c
		if c > 0 {
			next = max(was, now) + c
		}
		if b.free.CompareAndSwap(was, next) {
			return
		}
	}
}

// used returns how many units count, and how long until none does.
func (b *bucket) used(limit int64, window time.Duration, now int64) (n int64, reset time.Duration) {
	ahead := max(b.free.Load()-now, 0)
	return int64(math.Ceil(float64(ahead) * (float64(limit) / float64(window)))), time.Duration(ahead)
}
