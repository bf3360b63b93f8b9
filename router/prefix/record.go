package prefix

import "time"

// sentState is what Record found believed of the node it recorded for: with it,
// feedback can be held against the beliefs that were there at dispatch.
type sentState struct {
	ref  Ref
	at   stamp
	seen []sighting // leading groups, those whose lifetime was over included
}

func (s *sentState) reset() { *s = sentState{seen: s.seen[:0]} }

// sighting is a belief's touched and use flags, and how many blocks of the group were there.
type sighting uint64

// sightCount are the bits that a belief does not use: the number of blocks behind the leader.
const sightCount = groupBlocks - 1

func sight(b belief, count int) sighting {
	return sighting(uint64(b.touched())<<touchedAt | uint64(b)&useFlags | uint64(count-1))
}

func (s sighting) touched() stamp { return stamp(s>>touchedAt) & stampMask }
func (s sighting) inUse() bool    { return s&inUse != 0 }
func (s sighting) settled() bool  { return s&settled != 0 }
func (s sighting) count() int     { return int(s&sightCount) + 1 }

// saw is the sighting of the group that block i is in.
func (s *sentState) saw(i int) (sighting, bool) {
	g := i / groupBlocks
	if g >= len(s.seen) {
		return 0, false
	}
	return s.seen[g], true
}

// writeBatch is how many groups are written per hold of the lock.
const writeBatch = 32

// group is one group of a prompt that is being written for a node.
type group struct {
	x      *Index
	ref    Ref
	first  int // block
	count  int // blocks
	leader uint64
	tags   tags

	bucket *bucket
	place  int  // of the entry in its bucket
	known  bool // there is an entry
	was    belief
	had    tags
}

// keep is how many of the group's blocks were in its entry.
func (g *group) keep() int { return g.had.shared(g.tags, g.count) }

// find looks the group up in its bucket.
func (g *group) find(b *bucket) {
	g.bucket, g.place, g.was, g.had = b, b.at(entryKey(g.leader, g.ref.place())), 0, 0
	if g.known = g.place >= 0; g.known {
		g.was, g.had = belief(b.beliefs[g.place].Load()), tags(b.tags[g.place].Load())
	}
}

// set writes the belief about the group, which holds the blocks that it has in this prompt.
// An entry that has more keeps them if the belief goes on; if it does not, the group is reborn.
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

// believe writes the belief about a group that has an entry, and leaves its blocks.
func (g *group) believe(b belief) { g.bucket.beliefs[g.place].Store(uint64(b)) }

// write calls fn under the lock for each group of the chain. It stops when the node has left.
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

// What a dispatch makes of a group's entry, in the order of the chain:
//
//	no entry                                  born and touched now, pending
//	alive, as are all before it               touched now, otherwise as it was
//	expired, or older than a birth before it  born again now, pending; what it settled is gone
//
// All are in use from then on. Groups whose beliefs are in order, alive or not, are what
// feedback is held against (sentState). A pending group, and the blocks that a prompt adds to
// a held one, count as held from the first byte on (Begun).

// Record predicts, for a request dispatched at the given time, that the node
// will hold all blocks of the prompt once it has begun to answer. It finishes the chain,
// after which the prompt is no longer referred to. It belongs behind the dispatch, not before.
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

// Begun says that the node has begun to answer the request that Record was last called for
// with c: it holds the whole prompt. It does nothing when that request was recorded for
// another node.
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

// Forget takes back what Record predicted for a request that failed: at is the
// time it was recorded with. Blocks that another request has used since stay.
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
