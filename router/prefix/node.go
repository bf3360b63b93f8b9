package prefix

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Ref names one incarnation of a node in the index; 0 is none. Refs of nodes
// that have left stay invalid: it is a place in the node table and the
// generation of that place.
type Ref uint32

// maxNodes is the number of nodes that can be in the index at once, counting
// those that have left and are not swept yet.
const maxNodes = 1 << 16

func (r Ref) place() uint32 { return uint32(r) & (maxNodes - 1) }
func (r Ref) gen() uint32   { return uint32(r) >> 16 }

// node is what has been learned about one incarnation. Fields that Match reads
// are atomic; all are written under Index.mu.
type node struct {
	gen      atomic.Uint32 // of the incarnation that lives here, 0 = none
	lifetime atomic.Int32  // ms that a block is believed to stay untouched
	silent   atomic.Bool   // reports no cached token on repeats: not believed
	floor    atomic.Int64  // ms since the index began; older beliefs are gone
	reborn   atomic.Int64  // ms since the index began: the latest birth of a group that was there before

	lastGen  uint16
	lost     bool  // a block was found gone: the lifetime is learned
	zeros    uint8 // repeats in a row that reported nothing cached
	lastZero int64 // ms, when the last of them was learned
}

// oldest is the stamp that beliefs about the node must not be older than.
func (n *node) oldest(now stamp, nowMillis int64) stamp {
	return past(n.floor.Load(), now, nowMillis)
}

// past is the stamp of a time in ms since the index began, which is now at the latest and maxAge
// ago at the earliest.
func past(millis int64, now stamp, nowMillis int64) stamp {
	age := min(max(nowMillis-millis, 0), int64(maxAge))
	return (now - stamp(age)) & stampMask
}

// Join gives a node that has just appeared its place in the index; nothing is
// believed about it. A node that restarts leaves and joins again: the lifetime
// learned under its id is kept. Join returns 0 when 65,536 nodes are present:
// such a node is served, and never believed to hold anything.
func (x *Index) Join(nodeID string) Ref {
	x.mu.Lock()
	defer x.mu.Unlock()
	place := x.freePlace()
	if place < 0 {
		return 0
	}
	n := &x.nodes[place]
	n.lastGen++
	if n.lastGen == 0 {
		n.lastGen = 1
	}
	lifetime, ok := x.learned[nodeID]
	if !ok {
		lifetime = millis32(x.opts.Lifetime)
	}
	n.lost = ok
	n.lifetime.Store(lifetime)
	n.silent.Store(false)
	n.reborn.Store(-int64(maxAge))
	n.zeros = 0
	n.floor.Store(-int64(maxAge))
	x.ids[uint32(place)] = nodeID
	n.gen.Store(uint32(n.lastGen))
	return Ref(uint32(n.lastGen)<<16 | uint32(place))
}

func (x *Index) freePlace() int {
	for i, w := range x.free {
		if w != 0 {
			bit := bits.TrailingZeros64(w)
			x.free[i] &^= 1 << bit
			return i*64 + bit
		}
	}
	return -1
}

// Leave forgets a node: from now on nothing is believed about it and every call
// with its Ref is a no-op. It takes constant time; the memory of its beliefs and
// its place come back with the next sweep.
func (x *Index) Leave(ref Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.node(ref)
	if n == nil {
		return
	}
	id := x.ids[ref.place()]
	if n.lost {
		x.remember(id, n.lifetime.Load())
	}
	delete(x.ids, ref.place())
	n.gen.Store(0)
	x.left = append(x.left, ref.place())
	x.wake()
}

// maxLearned bounds the lifetimes remembered for nodes that are away; above it any one
// of them is forgotten.
const maxLearned = 4096

func (x *Index) remember(id string, lifetime int32) {
	if _, known := x.learned[id]; !known && len(x.learned) >= maxLearned {
		for other := range x.learned {
			delete(x.learned, other)
			break
		}
	}
	x.learned[id] = lifetime
}

// node is the state of a node that is present, or nil.
func (x *Index) node(ref Ref) *node {
	if ref == 0 {
		return nil
	}
	n := &x.nodes[ref.place()]
	if n.gen.Load() != ref.gen() {
		return nil
	}
	return n
}

// Lifetime is how long a block that nobody uses is believed to stay in the cache
// of a node; 0 for a node that has left.
func (x *Index) Lifetime(ref Ref) time.Duration {
	n := x.node(ref)
	if n == nil {
		return 0
	}
	return time.Duration(n.lifetime.Load()) * time.Millisecond
}

func millis32(d time.Duration) int32 {
	return int32(min(d/time.Millisecond, time.Duration(maxAge)))
}
