package fleet

import (
	"sync/atomic"
	"time"
)

// recentWindow is the longest delay of an engine's figure: the time of a scrape, or of an agent's
// sample and its way to the router.
const recentWindow = time.Second

// recent is the router's peak of requests in flight on a node over the last one to two windows. An
// engine's figure was taken at some moment within these windows. So requests in the figure beyond
// the peak certainly belong to others, even if requests of this router have ended since.
type recent struct {
	most       atomic.Int32 // peak since mostSince
	mostBefore int32        // peak of the previous window; guarded by slotsMu
	mostSince  time.Time    // guarded by slotsMu
}

// rise raises the peak to inFlight.
func (r *recent) rise(inFlight int32) {
	for {
		most := r.most.Load()
		if inFlight <= most || r.most.CompareAndSwap(most, inFlight) {
			return
		}
	}
}

// lately returns the peak of the last windows. The caller holds slotsMu.
func (n *Node) lately(now time.Time) int32 {
	r := &n.recent
	ours := max(r.mostBefore, r.most.Load())
	if now.Sub(r.mostSince) >= recentWindow {
		r.mostBefore, r.mostSince = r.most.Swap(n.inFlight.Load()), now
	}
	return ours
}
