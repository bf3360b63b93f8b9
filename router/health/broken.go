package health

import (
	"sync"
	"time"
)

// togetherWithin is the longest time between two broken connections of a node that count as broken
// by one cause.
const togetherWithin = time.Second

// broken remembers the node's last burst of broken connections and its last failed connection. In a
// burst each connection broke within togetherWithin of the preceding one.
type broken struct {
	mu          sync.Mutex
	first, last time.Time
	requests    int
	failed      time.Time

	// closedAt is the last check made because the node had closed a connection. The watching
	// goroutine owns closedAt.
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

// BrokeForOthers says whether another request's connection broke within a second of at, the time of
// the reported break. The two requests have only the node in common.
func (n *Node) BrokeForOthers(at time.Time) bool { return n.broken.forOthers(at) }

// FailedLately says whether a connection to the node was refused or broke within the last second.
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
