package shared

import (
	"sync/atomic"
	"time"
)

// Sizes of leases.
const (
	leaseRequests = 150 // requests that a lease is for, if the limit is large enough
	leaseFirst    = 9   // requests that the first lease is for, besides the one that asks
	leaseParts    = 16  // a lease is at most this part of the limit
	leaseLife     = 10 * time.Second
	leaseIdle     = 5 // looks of keeper, a second apart, after which an unused lease goes back
)

// reserveLeased takes units of the lease. If they do not suffice, reserveLeased asks keeper.
func (l *Limiter) reserveLeased(r *Reservation, at int64) (Refusal, Verdict) {
	limits := r.limits[:r.n]
	for i := range limits {
		if s := limits[i].Bucket.subject; i == 0 || s != limits[i-1].Bucket.subject {
			s.requests.Add(1)
		}
	}
	if at < l.until.Load() && l.spend(limits) {
		r.by = byLease
		l.add(r, l.routers.Load(), at)
		return Refusal{}, Admitted
	}
	if l.away.Load() {
		return Refusal{}, Unavailable
	}
	for i := range limits {
		b := limits[i].Bucket
		if b.refused(limits[i].Units, at) {
			return Refusal{Limit: i, Used: limits[i].counts(), Wait: limits[i].lacks(at)}, Refused
		}
	}
	a := l.wait(limits)
	if a.verdict == Admitted {
		r.by = byLease
		l.add(r, l.routers.Load(), at)
	}
	return a.no, a.verdict
}

// lacks returns how long Redis has no room for l.
func (l *Limit) lacks(at int64) time.Duration {
	if !l.Bucket.timed() {
		return 0
	}
	return time.Duration(max(l.Bucket.told.Load()-at+cost(l.Units, l.Max, l.Bucket.window)-int64(l.Bucket.window), 1))
}

// spend takes the units of all limits from their leases, or none.
func (l *Limiter) spend(limits []Limit) bool {
	for i := range limits {
		b := limits[i].Bucket
		left, ok := b.spend(limits[i].Units)
		if !ok {
			for j := range limits[:i] {
				limits[j].Bucket.back(limits[j].Units, limits[j].Units)
				limits[j].Bucket.taken.Add(-limits[j].Units)
			}
			return false
		}
		if left < b.low.Load() {
			l.short(b.subject)
		}
	}
	return true
}

// back settles n units of a lease, of which less come back.
func (b *Bucket) back(n, less int64) {
	switch {
	case b.window == 0:
		less = n
	case b.atOnce:
		b.spent.Add(-less)
	default:
		b.spent.Add(n - less)
	}
	b.left.Add(less)
}

// short tells keeper that a lease runs short. If keeper has too much to do, a request that finds
// the lease empty will ask.
func (l *Limiter) short(s *Subject) {
	if !s.short.CompareAndSwap(false, true) {
		return
	}
	select {
	case l.refills <- s:
	default:
		s.short.Store(false)
	}
}

// ask is a request that waits for keeper.
type ask struct {
	limits []Limit
	call   *call // of exact mode; nil: keeper makes one of the limits
	state  atomic.Int32
	answer chan answer
}

// States of an ask.
const (
	asked int32 = iota
	answered
	gone // its request did not wait longer
)

type answer struct {
	no      Refusal
	verdict Verdict
}

// wait asks keeper for units.
func (l *Limiter) wait(limits []Limit) answer {
	a := &ask{limits: append([]Limit(nil), limits...), answer: make(chan answer, 1)}
	select {
	case l.asks <- a:
	default:
		l.counts.full.Add(1)
		return answer{verdict: Unavailable}
	}
	l.counts.waits.Add(1)
	timer := time.NewTimer(l.o.Timeout)
	defer timer.Stop()
	select {
	case is := <-a.answer:
		return is
	case <-timer.C:
	}
	if a.state.CompareAndSwap(asked, gone) {
		l.counts.late.Add(1)
		return answer{verdict: Unavailable}
	}
	return <-a.answer
}

// reply answers, and returns whether the request still waits.
func (a *ask) reply(is answer) bool {
	if !a.state.CompareAndSwap(asked, answered) {
		return false
	}
	a.answer <- is
	return true
}

// leaseState is what keeper knows of a subject's lease.
type leaseState struct {
	requests int64 // at the last look
	idle     int   // looks without a request

	used   []int64 // of each bucket, last gathered for Redis
	serial int64   // of used
	state  telling // of used
}

// telling says what keeper knows of the last report of use.
type telling uint8

// States of a report.
const (
	told     telling = iota // Redis has counted it
	underway                // its answer is to come
	untold                  // nobody knows whether Redis has counted it
)

// share is what keeper knows of a bucket's lease.
type share struct {
	held     int64  // units of the lease, with those that running requests have reserved
	known    int64  // what Redis knows of held; -1: nothing is known of it
	target   int64  // units that left should have after a refill
	requests int64  // of the subject, when the target was set
	taken    int64  // of the bucket, when the target was set
	at       int64  // when the target was set
	round    uint64 // the flush in which units were last asked for
}

// size sets the target by what was taken since it was last set.
func (b *Bucket) size(at int64) {
	s := &b.share
	requests, taken := b.subject.requests.Load()-s.requests, b.taken.Load()-s.taken
	if requests <= 0 || taken <= 0 {
		return
	}
	target, most := int64(0), b.limit.Load()/leaseParts
	mean := (taken + requests - 1) / requests
	switch {
	case b.window == 0:
		target = min(max(s.held-b.left.Load(), 0)/4+2, max(most, 1))
	case most >= mean:
		perSecond := float64(taken) * float64(time.Second) / float64(max(at-s.at, int64(time.Millisecond)))
		target = min(max(int64(perSecond), mean*leaseRequests), taken*8, most)
	}
	if target < s.target {
		target = (target + s.target) / 2
	}
	s.target, s.requests, s.taken, s.at = target, requests+s.requests, taken+s.taken, at
	b.low.Store(target / 3)
}
