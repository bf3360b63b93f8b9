package lora

import (
	"slices"
	"sync"
	"sync/atomic"
)

// latest knows which adapters of a table were used last: as many as the engine has slots, or one if
// the slots are unknown. latest is the summary of all uses that Loaded compares one use with.
type latest struct {
	mu    sync.Mutex   // held by raise and settle
	last  atomic.Int64 // time of the oldest of the latest uses; 0: fewer adapters were used
	alive atomic.Int64 // adapters that are listed or were used
	times []int64      // scratch memory of settle
}

// most returns how many adapters may be among the latest.
func (t *table) most() int {
	if t.keeping == Latest && t.slots > 0 {
		return t.slots
	}
	return 1
}

// settle computes the summary anew after any change.
func (l *latest) settle(t *table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.times = l.times[:0]
	for _, e := range t.order {
		if at := e.use.at.Load(); at != 0 {
			l.times = append(l.times, at)
		}
	}
	slices.Sort(l.times)
	last := int64(0)
	if n := len(l.times); n >= t.most() {
		last = l.times[n-t.most()]
	}
	l.last.Store(last)
	l.follow(t)
}

// reach moves last on to a use, if one adapter may be among the latest. follow may set last back
// meanwhile, and then goes on until it has counted the use.
func (l *latest) reach(at int64) {
	for last := l.last.Load(); last < at; last = l.last.Load() {
		if l.last.CompareAndSwap(last, at) {
			return
		}
	}
}

// raise computes the summary after a later use of an adapter that was not later than the last.
func (l *latest) raise(s *Set) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.follow(s.load())
}

// follow moves last on until fewer uses are later than there are slots. A use that comes meanwhile
// is either counted here, or sees the new last and calls raise. The caller holds l.mu.
func (l *latest) follow(t *table) {
	for {
		last, least, later, alive := l.last.Load(), int64(0), 0, int64(0)
		for _, e := range t.order {
			at := e.use.at.Load()
			if e.listed || at != 0 {
				alive++
			}
			if at > last {
				if later++; later == 1 || at < least {
					least = at
				}
			}
		}
		l.alive.Store(alive)
		if later < t.most() {
			return
		}
		l.last.Store(least)
	}
}

// loaded says whether the engine has loaded the adapter of an entry of t.
func (l *latest) loaded(t *table, e *entry) (loaded, known bool) {
	at := e.use.at.Load()
	if !e.listed && at == 0 {
		return false, t.answered
	}
	last := l.last.Load()
	switch {
	case t.keeping == Listed:
		return true, true
	case t.keeping == Unknown || t.slots == 0:
		return at != 0, at != 0 && at >= last
	case l.alive.Load() <= int64(t.slots):
		return true, true
	case at < last:
		return false, true
	}
	return at != 0, at != 0
}
