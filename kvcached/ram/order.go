package ram

// queue is a heap of the blocks of one part, by the time of their last use.
//
// It is lazy: a use only puts a new stamp on the block. A look at a place in the heap moves blocks
// with newer stamps back. The look also drops blocks that are read or pinned, and blocks of the
// other part. A block with children stays while other blocks in front may be evicted. A dropped
// block comes back once no reason is left to drop it. Every entry has at most one place.
type queue struct{ items chunked[queued] }

// queued is small, because a block can have a place in the heaps of both parts.
type queued struct {
	high, low uint32 // the stamp
	id        ID
}

func place(stamp uint64, id ID) queued { return queued{uint32(stamp >> 32), uint32(stamp), id} }

func (it *queued) stamp() uint64 { return uint64(it.high)<<32 | uint64(it.low) }

func (q *queue) push(it queued) { q.set(q.items.grow(), it) }

// remove removes the element at i.
func (q *queue) remove(i uint32) {
	q.items.n--
	if i < q.items.n {
		q.set(i, *q.items.at(q.items.n))
	}
}

// set replaces the element at i.
func (q *queue) set(i uint32, it queued) {
	for i > 0 {
		up := (i - 1) / 2
		if q.items.at(up).stamp() <= it.stamp() {
			break
		}
		*q.items.at(i) = *q.items.at(up)
		i = up
	}
	for n := q.items.n; ; {
		down := 2*i + 1
		if down >= n {
			break
		}
		if down+1 < n && q.items.at(down+1).stamp() < q.items.at(down).stamp() {
			down++
		}
		if it.stamp() <= q.items.at(down).stamp() {
			break
		}
		*q.items.at(i) = *q.items.at(down)
		i = down
	}
	*q.items.at(i) = it
}

// idle tells whether nobody reads or pins a block.
func (t *Tier) idle(e *Entry) bool {
	return e.body != 0 && e.pins == 0 && t.extents.pieces.at(uint32(e.body)).link == 0
}

// evictable tells whether a block is an idle leaf.
func (t *Tier) evictable(e *Entry) bool { return e.kid == 0 && t.idle(e) }

// settle gives an idle block its place in the heap of its part.
func (t *Tier) settle(id ID) {
	e := t.At(id)
	p := e.part()
	if e.state&(1<<p) == 0 && t.idle(e) {
		e.state |= 1 << p
		t.parts[p].push(place(e.stamp, id))
	}
}

// front drops blocks that do not belong at place i of a part's heap, and returns the block there;
// 0: there is none.
func (t *Tier) front(p int, i uint32) ID {
	q := &t.parts[p].queue
	for i < q.items.n {
		it := *q.items.at(i)
		switch e := t.At(it.id); {
		case e.part() != p || !t.idle(e):
			e.state &^= 1 << p
			q.remove(i)
		case e.stamp != it.stamp():
			q.set(i, place(e.stamp, it.id))
		default:
			return it.id
		}
	}
	return 0
}

// leafSearch is how many of the blocks in front may be tried as a leaf. Prompts are used tail
// first, so that the first block nearly always is a leaf. If several blocks in front are no leaves,
// their children are in the other part, and so is the leaf to evict.
const leafSearch = 8

// leaf returns the oldest evictable leaf among the first blocks of a part, other than keep; 0:
// there is none.
func (t *Tier) leaf(p int, keep ID) (best ID) {
	for i := range uint32(leafSearch) {
		id := t.front(p, i)
		if id == 0 {
			break
		}
		if id != keep && t.evictable(t.At(id)) && (best == 0 || t.At(id).stamp < t.At(best).stamp) {
			best = id
		}
	}
	return best
}

// oldest returns the next leaf of a part to evict, other than keep; 0: there is none. It drops the
// blocks before it from the heap.
func (t *Tier) oldest(p int, keep ID) ID {
	i := uint32(0)
	for id := t.front(p, 0); id != 0; id = t.front(p, i) {
		switch {
		case id == keep:
			i = 1
		case t.evictable(t.At(id)):
			return id
		default:
			t.At(id).state &^= 1 << p
			t.parts[p].remove(i)
		}
	}
	return 0
}

// Stamp makes n stamps, each later than all before, and returns the first.
func (t *Tier) Stamp(n int) uint64 {
	first := t.clock + 1
	t.clock += uint64(n)
	return first
}

// Touch notes a use at stamp, together with others of a prompt. The first Touch after Publish is of
// the prompt that brought the block.
func (t *Tier) Touch(id ID, stamp uint64) {
	e := t.At(id)
	if e.state&fresh == 0 {
		t.promote(id, e)
	}
	e.state &^= fresh
	if e.stamp < stamp {
		e.stamp = stamp
	}
}

// Use notes that a client asked for a present block at stamp.
func (t *Tier) Use(id ID, stamp uint64) {
	e := t.At(id)
	if e.stamp < stamp {
		e.stamp = stamp
	}
	t.promote(id, e)
}
