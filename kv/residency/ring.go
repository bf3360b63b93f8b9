package residency

import "math/bits"

// ring holds the latest changes. A change is an entry in its new state, with its holder in next. A
// change of a holder itself, or of the readers, has one of the marks below in place of tiers.
type ring struct {
	changes []entry
	last    uint64 // number of the latest change; the first is 1
	wake    chan struct{}
	waited  bool // some watcher waits for wake to be closed
}

const (
	markReaders Tiers = 1 << 5 // of no holder: what engines read
	markJoined  Tiers = 1 << 6
	markGone    Tiers = 1 << 7
)

func newRing(n int) ring {
	return ring{changes: make([]entry, 1<<bits.Len(uint(n-1))), wake: make(chan struct{})}
}

func (r *ring) bytes() int64 { return int64(len(r.changes)) * entrySize }

// oldest returns the number of the oldest readable change.
func (r *ring) oldest() uint64 {
	if n := uint64(len(r.changes)); r.last > n {
		return r.last - n + 1
	}
	return 1
}

func (r *ring) at(number uint64) *entry { return &r.changes[number&uint64(len(r.changes)-1)] }

// add adds a change of a holder's block.
func (r *ring) add(holder uint32, e *entry) {
	r.last++
	c := r.at(r.last)
	*c = *e
	c.next = holder
	if e.position == 0 {
		c.leader = 0
	}
	r.wakeAll()
}

// wakeAll wakes the watchers that wait.
func (r *ring) wakeAll() {
	if r.waited {
		close(r.wake)
		r.wake, r.waited = make(chan struct{}), false
	}
}

// mark adds a change of a holder.
func (r *ring) mark(holder uint32, m Tiers) { r.add(holder, &entry{tiers: m}) }
