package health

import (
	"sync"
	"time"
)

// togetherWithin is how far apart broken connections of a node may be for them to have broken by
// the same event.
const togetherWithin = time.Second

// broken remembers the last burst of requests whose connection to the node has broken, each within
// togetherWithin of the one before, and when a connection to it failed last.
type broken struct {
	mu          sync.Mutex
	first, last time.Time
	requests    int
	failed      time.Time

	// closedAt is when the node was checked because it had closed a connection. It is owned by the
	// goroutine that looks.
	closedAt time.Time
}

// note takes a ConnectError or a Reset.
func (b *broken) note(o Outcome, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failed = now
	if o != Reset {
		return
	}
	if now.Sub(b.last) > togetherWithin {
		b.first, b.requests = now, 0
	}
	b.last = now
	b.requests++
}

// BrokeForOthers tells whether the connection of another request broke within a second of the one
// that broke at at and was reported: both have only the node in common.
func (n *Node) BrokeForOthers(at time.Time) bool { return n.broken.forOthers(at) }

// FailedLately tells whether a connection to the node was refused or broke within the last second.
func (n *Node) FailedLately(now time.Time) bool { return n.broken.lately(now) }

func (b *broken) forOthers(at time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.requests > 1 && !at.Before(b.first.Add(-togetherWithin)) && !at.After(b.last)
}

func (b *broken) lately(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.Sub(b.failed) < togetherWithin
}
