package admission

import (
	"sync/atomic"
	"time"
)

const (
	budgetWindowSeconds = 10
	budgetBuckets       = 16 // a power of two above the window, so that a live bucket is never reused
)

// Budget bounds retries to a percentage of the last 10 seconds' requests. A floor allows a few
// retries even without traffic. Budget is safe for concurrent use, without locks.
type Budget struct {
	percent, floor int64
	now            func() time.Time
	epoch          time.Time
	requests       window
	retries        window
}

// NewBudget returns a budget of percent retries per 100 requests of the last 10 seconds. At least
// floor retries are allowed in any 10 seconds. now is the clock; nil means time.Now.
func NewBudget(percent, floor int, now func() time.Time) *Budget {
	if now == nil {
		now = time.Now
	}
	return &Budget{percent: int64(percent), floor: int64(floor), now: now, epoch: now()}
}

// Request counts one request from a client. Request is called once per request, not per attempt.
func (b *Budget) Request() { b.requests.add(b.second(), 1) }

// Allow takes one retry out of the budget, or returns false when the budget is spent. Concurrent
// callers never exceed the budget together. Near the end of the budget one of them may be refused
// early.
func (b *Budget) Allow() bool {
	s := b.second()
	b.retries.add(s, 1)
	if b.retries.sum(s) <= max(b.floor, b.requests.sum(s)*b.percent/100) {
		return true
	}
	b.retries.add(s, -1)
	return false
}

// second starts at budgetBuckets, so that an untouched bucket (second 0) is never in the window.
func (b *Budget) second() uint32 {
	return uint32(max(b.now().Sub(b.epoch), 0)/time.Second) + budgetBuckets
}

// window counts events in one-second buckets. A bucket packs a second (upper 32 bits) with its
// count (lower 32 bits), so one compare-and-swap both starts a bucket and counts in it.
type window [budgetBuckets]atomic.Uint64

func (w *window) add(second uint32, delta int32) {
	bucket := &w[second%budgetBuckets]
	for {
		old := bucket.Load()
		count := int64(uint32(old))
		switch at := uint32(old >> 32); {
		case at > second:
			return // the caller slept through 16 s; the caller's event has left every window
		case at < second:
			count = 0
		}
		count = max(count+int64(delta), 0)
		if bucket.CompareAndSwap(old, uint64(second)<<32|uint64(uint32(count))) {
			return
		}
	}
}

func (w *window) sum(second uint32) int64 {
	var n int64
	for i := range w {
		v := w[i].Load()
		if age := int64(second) - int64(v>>32); age > -budgetBuckets && age < budgetWindowSeconds {
			n += int64(uint32(v))
		}
	}
	return n
}
