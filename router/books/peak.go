package books

import (
	"sync/atomic"
	"time"
)

// PeakWindow is the usual bound for the age of an engine's figure: the time of a scrape, or of an
// agent's sample and its way to the router. A window of a Peak is at least that long. It ends with
// the next report of the node after that time.
const PeakWindow = time.Second

// Peak is the highest value of a counter over the last one to two windows. An engine's figure is
// mostly taken within these windows. A figure beyond the peak then counts load of others, even if
// load of this router has ended since. With an older figure, load of this router that has ended may
// count as others' until the next figure. Rise is safe for concurrent use.
type Peak struct {
	most   atomic.Int64 // of the present window
	before int64        // peak of the window before
	since  time.Time    // beginning of the present window
}

// Rise raises the peak to v.
func (p *Peak) Rise(v int64) {
	for {
		most := p.most.Load()
		if v <= most || p.most.CompareAndSwap(most, v) {
			return
		}
	}
}

// Since returns the peak, and begins a new window if the last one is over. present is the counter's
// value. The caller calls Since from one goroutine at a time.
func (p *Peak) Since(now time.Time, present int64) int64 {
	peak := max(p.before, p.most.Load())
	if now.Sub(p.since) >= PeakWindow {
		p.before, p.since = p.most.Swap(present), now
	}
	return peak
}
