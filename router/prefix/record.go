package prefix

import (
	"sync/atomic"
	"time"
)

// sentState is what Record found believed of the node it recorded for: with it,
// feedback can be held against the beliefs that were there at dispatch.
type sentState struct {
	ref  Ref
	at   stamp
	seen []sighting // leading blocks, those whose lifetime was over included
}

func (s *sentState) reset() { s.ref, s.seen = 0, s.seen[:0] }

// sighting is a belief's touched and flags.
type sighting uint64

func sight(b belief) sighting {
	return sighting(uint64(b.touched())<<touchedAt | b.flags())
}

func (s sighting) touched() stamp { return stamp(s>>touchedAt) & stampMask }
func (s sighting) inUse() bool    { return s&inUse != 0 }
func (s sighting) settled() bool  { return s&settled != 0 }

// writeBatch is how many blocks are written per hold of the lock.
const writeBatch = 128

// edit is called under the lock with the belief about block i, or nil and 0.
type edit func(i int, key uint64, cell *atomic.Uint64, b belief)

// write calls fn for each block of the chain. It stops when the node has left.
func (x *Index) write(c *Chain, ref Ref, fn edit) {
	c.hashTo(c.blocks)
	for from := 0; from < c.blocks; from += writeBatch {
		if !x.writeSome(c, ref, from, min(from+writeBatch, c.blocks), fn) {
			return
		}
	}
	if x.table.full() {
		x.wake()
	}
}

func (x *Index) writeSome(c *Chain, ref Ref, from, to int, fn edit) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.node(ref) == nil {
		return false
	}
	for i := from; i < to; i++ {
		key := pageKey(c.key(i), ref.page())
		cell := x.table.find(key, ref.lane())
		var b belief
		if cell != nil {
			b = belief(cell.Load())
		}
		fn(i, key, cell, b)
	}
	return true
}

// Record predicts, for a request dispatched at the given time, that the node
// will hold all blocks of the prompt. It finishes the chain, after which the
// prompt is no longer referred to. It belongs behind the dispatch, not before.
func (x *Index) Record(c *Chain, ref Ref, at time.Time) {
	n := x.node(ref)
	if n == nil {
		c.sent.reset()
		return
	}
	now := x.clock.stamp(at)
	c.sent = sentState{ref: ref, at: now, seen: c.sent.seen[:0]}
	lifetime, floor := n.lifetime.Load(), n.oldest(now, x.clock.millis(at))
	ordered, alive := true, true
	x.write(c, ref, func(_ int, key uint64, cell *atomic.Uint64, b belief) {
		ordered = ordered && cell != nil && since(b.touched(), floor) >= 0
		if ordered {
			floor = later(floor, b.born())
			c.sent.seen = append(c.sent.seen, sight(b))
		}
		alive = alive && ordered && since(now, b.touched()) <= lifetime
		switch {
		case cell == nil:
			x.table.insert(key, newBelief(ref.lane(), now, now, inUse))
		case alive:
			cell.Store(uint64(b.touch(now, b.flags()|inUse)))
		default:
			cell.Store(uint64(newBelief(ref.lane(), later(now, b.born()), later(now, b.touched()), inUse)))
		}
	})
}

// Forget takes back what Record predicted for a request that failed: at is the
// time it was recorded with. Blocks that another request has used since stay.
func (x *Index) Forget(c *Chain, ref Ref, at time.Time) {
	then := x.clock.stamp(at)
	x.write(c, ref, func(i int, key uint64, cell *atomic.Uint64, b belief) {
		switch {
		case cell == nil || b.touched() != then:
		case b.born() == then && b.flags()&settled == 0:
			x.table.remove(key, ref.lane())
		case c.sent.ref == ref && i < len(c.sent.seen):
			s := c.sent.seen[i]
			cell.Store(uint64(newBelief(ref.lane(), b.born(), s.touched(), uint64(s)&beliefFlags)))
		}
	})
}
