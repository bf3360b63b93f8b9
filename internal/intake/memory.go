package intake

import (
	"slices"
	"sync"
)

const (
	keptRegions = 64        // regions that wait for the next bodies
	keptBytes   = 512 << 10 // bytes of each of them that keep their memory
)

// region is memory for one body, outside Go's heap. A region has addresses for the longest body,
// and takes memory page by page as bytes are written. So a client that announces much and sends
// little costs little. A body in many pieces is never copied. The body's memory is released at its
// end, and not by a garbage collection.
type region struct {
	bytes    []byte // nil: no region
	resident int    // leading bytes that may have memory
}

// regions holds the unused regions. The most recently used region is taken first.
type regions struct {
	mu     sync.Mutex
	free   []region // at most keptRegions, all of the same size
	closed bool
}

// take returns a region of size bytes, of which at most want take memory already. take returns an
// empty region if the system gives none.
func (r *regions) take(size, want int) region {
	m := r.pop(want)
	if m.bytes != nil && m.shrink(want) {
		return m
	}
	m.unmap()
	return newRegion(size)
}

// pop returns the most recently used region among those with at most want bytes of memory, or else
// among all.
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

// give takes back an unused region. If r then holds too many regions, give unmaps the least
// recently used one.
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

// close unmaps the unused regions. From then on a used region is unmapped at the end of its body.
func (r *regions) close() {
	r.mu.Lock()
	free := r.free
	r.free, r.closed = nil, true
	r.mu.Unlock()
	for _, m := range free {
		m.unmap()
	}
}
