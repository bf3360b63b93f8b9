package fleet

import (
	"sync/atomic"
	"time"
)

// recentWindow is how long a figure of the engine's requests may have taken to arrive: a scrape, or
// an agent's look and its way here.
const recentWindow = time.Second

// recent is the most requests that the router has had in flight on a node in the last one to two
// windows before a figure of its engine came, or since the figure before if that is longer. The
// engine's figure is of some moment in that time. Requests beyond our most are certainly not ours,
// so a request of ours that has ended meanwhile never counts as somebody else's.
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

// lately is the most of the last windows. It is called with slotsMu held.
func (n *Node) lately(now time.Time) int32 {
	r := &n.recent
	ours := max(r.mostBefore, r.most.Load())
	if now.Sub(r.mostSince) >= recentWindow {
		r.mostBefore, r.mostSince = r.most.Swap(n.inFlight.Load()), now
	}
	return ours
}
