package fleet

import (
	"sync/atomic"
	"time"
)

// recentWindow is how long before a figure of the engine's requests arrives it may have been true: a scrape, or an agent's look and its way here.
const recentWindow = time.Second

// recent is how many requests the router has had in flight on a node at most, in the last one to two windows before a figure of its engine came, or since
// the figure before if that is longer. The engine's figure is of some moment in that time: what it holds beyond our most is certainly not ours, so that a
// request of ours that has ended meanwhile is never taken for somebody else's.
type recent struct {
	most       atomic.Int32 // since mostSince
	mostBefore int32        // most of the window before; guarded by slotsMu
	mostSince  time.Time    // guarded by slotsMu
}

// rise notes that so many are in flight.
func (r *recent) rise(inFlight int32) {
	for {
		most := r.most.Load()
		if inFlight <= most || r.most.CompareAndSwap(most, inFlight) {
			return
		}
	}
}

// ours is lately for those who do not hold slotsMu.
func (n *Node) ours(now time.Time) int32 {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	return n.lately(now)
}

// lately is the most of the last windows. It is called with slotsMu held.
func (n *Node) lately(now time.Time) int32 {
	ours := max(n.mostBefore, n.most.Load())
	if now.Sub(n.mostSince) >= recentWindow {
		n.mostBefore, n.mostSince = n.most.Swap(n.inFlight.Load()), now
	}
	return ours
}
