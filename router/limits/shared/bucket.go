package shared

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Month is the window of what counts until a calendar month ends, in UTC by the server's clock.
const Month = -1 * time.Nanosecond

// Rule is what a bucket counts.
type Rule struct {
	Name   string        // of the bucket in Redis, without # and @
	Window time.Duration // at least 1 ms; Month; 0: requests at a time
	// AtOnce says that units count as used when they are reserved. Other units are held until the
	// request settles, and do not come back with time before.
	AtOnce bool
}

// Limit is one limit of a request. A request names a bucket once at most.
type Limit struct {
	Bucket *Bucket
	Max    int64 // most units per window, or requests at a time; above 0
	Units  int64 // what the request reserves; 1 of requests at a time
}

// Subject is whom limits bound: a tenant, a key, or its use of a model. Its counts are in Redis
// under its name, so routers that make a subject of the same name share them. The caller keeps the
// subject: what this router has leased hangs on it.
type Subject struct {
	hash    string // key in Redis
	mark    string // begin of the keys of marks
	holder  string // of what this router holds of the subject
	buckets []Bucket

	requests atomic.Int64 // that have asked for units of a lease
	flying   atomic.Int64 // running requests in exact mode
	mu       sync.Mutex   // of lines
	lines    []*line      // with a call underway, of requests whose first limit is the subject's
	short    atomic.Bool  // keeper has been told to look at the subject
	lease    leaseState   // owned by keeper
}

// Bucket returns the bucket of the i-th rule.
func (s *Subject) Bucket(i int) *Bucket { return &s.buckets[i] }

// Bucket counts what a subject uses of one limit.
type Bucket struct {
	subject *Subject
	field   string
	window  time.Duration
	atOnce  bool
	limit   atomic.Int64 // of the last request

	// A lease is in left, in reservations of running requests, and in spent. Below 0 left says that
	// more was used than reserved.
	left  atomic.Int64
	spent atomic.Int64 // used units that Redis has not been told
	low   atomic.Int64 // less than this left asks keeper for more
	taken atomic.Int64 // units taken ever, before any came back

	full  atomic.Int64 // ns on this process's clock: Redis has no room for refused units until then
	asked atomic.Int64 // refused units
	told  atomic.Int64 // ns on this process's clock at which Redis counts nothing; or units

	// word is like told, of all that this router has admitted. It bounds the router while Redis is
	// away. Of requests at a time it is how many are in flight.
	word atomic.Int64

	share share // owned by keeper
}

// timed says whether what is used comes back with time.
func (b *Bucket) timed() bool { return b.window > 0 }

// span is the window of what the router counts alone, where a month is 30 days.
func (b *Bucket) span() time.Duration {
	if b.window == Month {
		return 30 * 24 * time.Hour
	}
	return b.window
}

// start is the origin of this process's clock. Buckets start at 0, which is long ago.
var start = time.Now().Add(-24 * time.Hour)

// now returns ns on this process's clock.
func now() int64 { return int64(time.Since(start)) }

// cost returns for how long n units of a limit count, in ns; 40 days at most.
func cost(n, limit int64, window time.Duration) int64 {
	c := math.Ceil(math.Abs(float64(n)) * (float64(window) / float64(limit)))
	return int64(math.Copysign(min(c, float64(40*24*time.Hour)), float64(n)))
}

// spend takes n units of the lease. A debt is no matter of a request without units.
func (b *Bucket) spend(n int64) (left int64, ok bool) {
	for {
		was := b.left.Load()
		if n == 0 {
			return was, true
		}
		if was < n {
			return was, false
		}
		if b.left.CompareAndSwap(was, was-n) {
			b.take(n)
			return was - n, true
		}
	}
}

// take counts n units of the lease as taken.
func (b *Bucket) take(n int64) {
	b.taken.Add(n)
	if b.atOnce {
		b.spent.Add(n)
	}
}

// upTo takes at most n units of the lease.
func (b *Bucket) upTo(n int64) int64 {
	for {
		was := b.left.Load()
		got := min(was, n)
		if got <= 0 {
			return 0
		}
		if b.left.CompareAndSwap(was, was-got) {
			return got
		}
	}
}

// refused says whether Redis has lately had no room for n units that the lease has not.
func (b *Bucket) refused(n, at int64) bool {
	return at < b.full.Load() && n >= b.asked.Load() && n > b.left.Load()
}

// noRoom records that Redis has no room for n units for a time.
func (b *Bucket) noRoom(n, at int64, wait time.Duration) {
	if wait <= 0 {
		wait = refusalLife
	}
	b.asked.Store(n)
	b.full.Store(at + int64(min(wait, refusalLife)))
}

// refusalLife is how long a refusal counts for later requests that ask for as much. What others
// give back becomes visible after this time.
const refusalLife = 100 * time.Millisecond

// add counts units that the router has admitted, or gives them back if n is negative. Here no more
// than a whole window counts, so a router that had most of a limit goes on with its share of it.
func (b *Bucket) add(l *Limit, n, routers, at int64) {
	if b.window == 0 {
		b.word.Add(n)
		return
	}
	c := cost(n, portion(l.Max, routers), b.span())
	for {
		was := b.word.Load()
		next := was + c
		if c > 0 {
			next = max(was, min(max(was, at)+c, at+int64(b.span())))
		}
		if b.word.CompareAndSwap(was, next) {
			return
		}
	}
}

// portion is one router's share of a limit; at least 1.
func portion(limit, routers int64) int64 { return (limit + routers - 1) / max(routers, 1) }

// admit takes l's units of the router's own share of the limit. A request larger than the share
// needs all of it.
func (b *Bucket) admit(l *Limit, routers, at int64) (wait time.Duration, ok bool) {
	if l.Units == 0 {
		return 0, true
	}
	own := portion(l.Max, routers)
	if b.window == 0 {
		if b.word.Add(l.Units) > own {
			b.word.Add(-l.Units)
			return 0, false
		}
		return 0, true
	}
	c, span := cost(l.Units, own, b.span()), int64(b.span())
	for {
		was := b.word.Load()
		from := max(was, at)
		if over := from + min(c, span) - at - span; over > 0 {
			return time.Duration(over), false
		}
		if b.word.CompareAndSwap(was, from+c) {
			return 0, true
		}
	}
}

// units returns how many units count that count for d.
func (l *Limit) units(d time.Duration) int64 {
	return int64(math.Ceil(float64(d)*(float64(l.Max)/float64(l.Bucket.span())) - 1e-6))
}

// Left is what is left of a limit.
type Left struct {
	Remaining int64
	Reset     time.Duration // until nothing counts as used; 0 of requests at a time, and of a month
}

// Left returns what is left of the limit, as Redis has last told this router.
func (l *Limit) Left() Left {
	b, told := l.Bucket, l.Bucket.told.Load()
	var reset time.Duration
	if b.timed() {
		reset = time.Duration(max(told-now(), 0))
		told = l.units(reset)
	}
	return Left{min(max(l.Max-told+b.left.Load(), 0), l.Max), reset}
}
