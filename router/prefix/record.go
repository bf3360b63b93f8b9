package prefix

import "time"

// sentState holds the beliefs about the node at the dispatch. Observe compares the engine's report
// with these beliefs.
type sentState struct {
	ref  Ref
	at   stamp
	seen []sighting // leading groups, expired ones included
}

func (s *sentState) reset() { *s = sentState{seen: s.seen[:0]} }

// sighting is a belief's touched and use flags, with the number of the group's blocks that were
// there.
type sighting uint64

// sightCount masks the bits that a belief does not use. These bits hold the number of blocks behind
// the leader.
const sightCount = groupBlocks - 1

func sight(b belief, count int) sighting {
	return sighting(uint64(b.touched())<<touchedAt | uint64(b)&useFlags | uint64(count-1))
}

func (s sighting) touched() stamp { return stamp(s>>touchedAt) & stampMask }
func (s sighting) inUse() bool    { return s&inUse != 0 }
func (s sighting) settled() bool  { return s&settled != 0 }
func (s sighting) count() int     { return int(s&sightCount) + 1 }

// writeBatch is the number of groups written per hold of the lock.
const writeBatch = 32

// group is one group of a prompt while it is written for a node.
type group struct {
	x      *Index
	ref    Ref
	first  int // index of the group's first block
	count  int // number of blocks
	leader uint64
	tags   tags

	bucket *bucket
	place  int  // index of the entry in the bucket
	known  bool // the entry exists
	was    belief
	had    tags
}

// keep returns how many of the group's blocks were in its entry.
func (g *group) keep() int { return g.had.shared(g.tags, g.count) }

// find looks the group up in its bucket.
func (g *group) find(b *bucket) {
	g.bucket, g.place, g.was, g.had = b, b.at(entryKey(g.leader, g.ref.place())), 0, 0
	if g.known = g.place >= 0; g.known {
		g.was, g.had = belief(b.beliefs[g.place].Load()), tags(b.tags[g.place].Load())
	}
}

// set writes the belief about the group with the blocks of this prompt. If the old belief goes on,
// an entry with more blocks keeps its blocks. If not, the group is reborn.
func (g *group) set(b belief, goesOn bool) {
	if !g.known {
		g.x.table.insert(g.bucket, entryKey(g.leader, g.ref.place()), b, g.tags)
		return
	}
	if !goesOn {
		now, nowMillis := g.x.clock.nowStamp()
		n, born := &g.x.nodes[g.ref.place()], nowMillis+int64(since(b.born(), now))
		n.reborn.Store(max(n.reborn.Load(), born))
	}
	if !goesOn || g.keep() < g.count {
		g.x.table.resize(g.bucket, g.place, g.had, g.tags)
	}
	g.believe(b)
}

// believe writes the belief of an existing entry and keeps its blocks.
func (g *group) believe(b belief) { g.bucket.beliefs[g.place].Store(uint64(b)) }

// write calls fn under the lock for each group of the chain. write stops when the node has left.
func (x *Index) write(c *Chain, ref Ref, fn func(i int, g *group)) {
	c.HashTo(c.blocks)
	n := c.groups()
	for from := 0; from < n; from += writeBatch {
		if !x.writeSome(c, ref, from, min(from+writeBatch, n), fn) {
			return
		}
	}
	if x.table.full() {
		x.wake()
	}
}

func (x *Index) writeSome(c *Chain, ref Ref, from, to int, fn func(i int, g *group)) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.node(ref) == nil {
		return false
	}
	var buckets [writeBatch]*bucket
	for i := from; i < to; i++ {
		buckets[i-from] = x.table.fetch(c.leader(i), ref.place())
	}
	g := &x.writing
	g.x, g.ref = x, ref
	for i := from; i < to; i++ {
		g.first, g.count, g.leader, g.tags = i*groupBlocks, c.count(i), c.leader(i), c.tags(i)
		g.find(buckets[i-from])
		fn(i, g)
	}
	return true
}

// A dispatch changes the entries of the groups as follows, in the order of the chain:
//
//	no entry                                  born and touched now, pending
//	alive, as are all before it               touched now, otherwise unchanged
//	expired, or older than a birth before it  born again now, pending; no longer settled
//
// All groups of the prompt are then in use. Feedback is compared with the leading groups whose
// beliefs were in order, alive or not (sentState). A pending group counts as held from the first
// byte on (Begun), and so do the blocks that a prompt adds to a held group.

// Record predicts that the node will hold all blocks of the prompt once it begins to answer a
// request dispatched at at. Record finishes the chain and drops the references to the prompt. Call
// Record after the dispatch, not before.
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
	x.write(c, ref, func(_ int, g *group) {
		b := g.was
		ordered = ordered && g.known && since(b.touched(), floor) >= 0
		if ordered {
			floor = later(floor, b.born())
			c.sent.seen = append(c.sent.seen, sight(b, g.keep()))
		}
		alive = alive && ordered && since(now, b.touched()) <= lifetime
		switch {
		case !g.known:
			g.set(newBelief(now, now, inUse|pending), false)
		case alive:
			g.believe(b.touch(now, b.flags()|inUse))
		default:
			g.set(newBelief(later(now, b.born()), later(now, b.touched()), inUse|pending), false)
		}
	})
}

// Begun notes that the node has begun to answer the request last recorded with c. The node then
// holds the whole prompt. Begun does nothing if that request was recorded for another node.
func (x *Index) Begun(c *Chain, ref Ref) {
	if c.sent.ref != ref {
		return
	}
	at := c.sent.at
	x.write(c, ref, func(_ int, g *group) {
		if !g.known {
			g.set(newBelief(at, at, inUse), false)
			return
		}
		g.set(g.was&^pending, true)
	})
}

// Forget takes back the prediction for a failed request. at is the time passed to Record. Blocks
// that another request has used since stay.
func (x *Index) Forget(c *Chain, ref Ref, at time.Time) {
	then := x.clock.stamp(at)
	x.write(c, ref, func(i int, g *group) {
		b := g.was
		switch {
		case !g.known || b.touched() != then:
		case b.born() == then && b.flags()&settled == 0:
			x.table.clear(g.bucket, g.place)
		case c.sent.ref == ref && i < len(c.sent.seen):
			s := c.sent.seen[i]
			g.believe(newBelief(b.born(), s.touched(), uint64(s)&useFlags|uint64(b)&pending))
			if g.had == g.tags {
				x.table.resize(g.bucket, g.place, g.had, g.had.first(s.count()))
			}
		}
	})
}
