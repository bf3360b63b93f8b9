package prefix

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Ref identifies one incarnation of a node in the index; 0 is none. Ref is a place in the node
// table with the generation of that place, so the Ref of a departed node stays invalid.
type Ref uint32

// maxNodes is the number of nodes that fit in the index at once. A departed node counts until it is
// swept.
const maxNodes = 1 << 16

func (r Ref) place() uint32 { return uint32(r) & (maxNodes - 1) }
func (r Ref) gen() uint32   { return uint32(r) >> 16 }

// node is the state of one incarnation. Fields that Match reads are atomic. All fields are written
// under Index.mu.
type node struct {
	gen      atomic.Uint32 // generation of the incarnation; 0 = none
	lifetime atomic.Int32  // ms for which an untouched block counts as cached
	silent   atomic.Bool   // the node reports no cached token on repeats; its beliefs do not count
	floor    atomic.Int64  // ms since the index began; older beliefs do not count
	reborn   atomic.Int64  // ms since the index began: the latest rebirth of a group

	lastGen  uint16
	lost     bool  // a block was found gone, so the lifetime is learned
	zeros    uint8 // repeats in a row with nothing cached
	lastZero int64 // ms, when the last repeat with nothing cached was learned
}

// oldest returns the oldest stamp that a valid belief about the node may have.
func (n *node) oldest(now stamp, nowMillis int64) stamp {
	return past(n.floor.Load(), now, nowMillis)
}

// past returns the stamp of a time in ms since the index began, clamped to the range from maxAge
// ago to now.
func past(millis int64, now stamp, nowMillis int64) stamp {
	age := min(max(nowMillis-millis, 0), int64(maxAge))
	return (now - stamp(age)) & stampMask
}

// Join gives a new node a place in the index, without beliefs. A restarted node leaves and joins
// again, and keeps the lifetime learned under its id. Join returns 0 when 65,536 nodes are present.
// A node with Ref 0 is served, but never believed to hold a block.
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
		lifetime = millis32(x.o.Lifetime)
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

// Leave forgets a node. A departed node has no beliefs, and every call with its Ref does nothing.
// Leave takes constant time; the next sweep frees the memory of its beliefs and its place.
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

// maxLearned bounds the lifetimes kept for absent nodes. Beyond the bound a random lifetime is
// forgotten.
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

// node returns the state of a present node, or nil.
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

// Lifetime returns how long an unused block counts as cached at a node, or 0 for a departed node.
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
