package intake

import (
	"slices"
	"sync"
)

const (
	keptRegions = 64        // that wait for the next bodies
	keptBytes   = 512 << 10 // of each of them that keep their memory
)

// region is memory for one body, outside Go's heap: addresses for as much as it may become, which
// take memory page by page as bytes are written there. So a client that announces much and sends
// little costs little, a body that comes in many pieces is never copied, and what it took is given
// back at its end, not with some collection.
type region struct {
	bytes    []byte // nil: there is none
	resident int    // leading bytes that may have memory behind them
}

// regions are those that no body is in. The one that was used last is taken first.
type regions struct {
	mu     sync.Mutex
	free   []region // at most keptRegions; all have one size
	closed bool
}

// take returns a region of size bytes of which no more than want take memory yet, or one without
// bytes where the system gives none.
func (r *regions) take(size, want int) region {
	m := r.pop(want)
	if m.bytes != nil && m.shrink(want) {
		return m
	}
	m.unmap()
	return newRegion(size)
}

// pop returns the region that was used last of those that take no more memory than want, or else of
// all.
func (r *regions) pop(want int) region {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.free) == 0 {
		return region{}
	}
	at := len(r.free) - 1
	for i, m := range slices.Backward(r.free) {
		if m.resident <= want {
			at = i
			break
		}
	}
	m := r.free[at]
	r.free = slices.Delete(r.free, at, at+1)
	return m
}

// give takes back a region that nobody uses any more. The one that was not used for longest goes if
// they are too many.
func (r *regions) give(m region) {
	if m.bytes == nil {
		return
	}
	kept := m.shrink(keptBytes)
	r.mu.Lock()
	switch {
	case r.closed || !kept:
	case len(r.free) == keptRegions:
		oldest := r.free[0]
		r.free = append(slices.Delete(r.free, 0, 1), m)
		m = oldest
	default:
		r.free = append(r.free, m)
		m = region{}
	}
	r.mu.Unlock()
	m.unmap()
}

// close gives back the regions that are free, and from then on each one with its body.
func (r *regions) close() {
	r.mu.Lock()
	free := r.free
	r.free, r.closed = nil, true
	r.mu.Unlock()
	for _, m := range free {
		m.unmap()
	}
}
