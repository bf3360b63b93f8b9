package residency

import "unsafe"

// chains remembers the places of blocks in their chains, by the first 8 bytes of their digests. A
// later block then finds its parent, whichever holder has it. A new block replaces another one with
// the same slot of the memo.
type chains struct {
	memo    *[memoSize]link
	waiting int    // parents that blocks of any holder wait for
	ready   []link // waited-for parents that are known by now
}

// link is the place of a block in its chain.
type link struct {
	own, leader uint64
	position    uint32 // 1 + the block's number in its chain; 0: unknown
}

const (
	memoSize    = 1 << 16
	chainBytes  = int64(unsafe.Sizeof([memoSize]link{}))
	maxPosition = 1 << 30
	maxWaiting  = 1 << 20 // parents waited for; beyond it a block keeps position 0
	settleStep  = 32      // waiting blocks that one change places in addition to its own
)

// newChains allocates all memory at once, so that the cost of a block does not depend on the number
// of blocks.
func newChains() chains { return chains{memo: new([memoSize]link)} }

func (c *chains) recall(own uint64) (l link, ok bool) {
	l = c.memo[own%memoSize]
	return l, l.own == own && l.position != 0
}

func (c *chains) remember(l link) { c.memo[l.own%memoSize] = l }

// after returns the place of the block own that follows l.
func (l link) after(own uint64) link {
	n := link{own, l.leader, l.position + 1}
	if l.position%GroupBlocks == 0 {
		n.leader = own
	}
	return n
}

// locate finds the place of a parent block in holder h.
func (x *Index) locate(h *holder, own uint64, namespace uint16, layer uint32) (link, bool) {
	if l, ok := x.chains.recall(own); ok {
		return l, true
	}
	if slot := h.find(own, namespace, layer); slot != 0 {
		e := h.at(slot)
		return link{own, e.leader, e.position}, e.position != 0
	}
	return link{}, false
}

// place finds the place of the new block in a slot, or makes it wait for its parent.
func (x *Index) place(h *holder, slot uint32) {
	e := h.at(slot)
	own := e.own()
	known, ok := x.chains.recall(own)
	ok = ok && known.position > 1
	if e.parent == 0 {
		if !ok {
			known = link{own, own, 1}
		}
		x.settled(e, known)
		return
	}
	if l, found := x.locate(h, e.parent, e.namespace, e.layer); found && l.position < maxPosition {
		known, ok = l.after(own), true
	}
	if ok {
		x.settled(e, known)
		return
	}
	x.wait(h, slot)
}

// settled records the place of an entry's block. Blocks that wait for a settled block can then be
// placed.
func (x *Index) settled(e *entry, l link) {
	e.leader, e.position = l.leader, l.position
	x.chains.remember(l)
	if x.chains.waiting == 0 {
		return
	}
	for _, h := range x.holders {
		if _, ok := h.waiting[l.own]; ok {
			x.chains.ready = append(x.chains.ready, l)
			return
		}
	}
}

// wait adds the block in a slot to the list of its parent's waiting blocks.
func (x *Index) wait(h *holder, slot uint32) {
	e := h.at(slot)
	first, ok := h.waiting[e.parent]
	if !ok {
		if x.chains.waiting >= maxWaiting {
			x.stats.Lost++
			return
		}
		x.chains.waiting++
		if h.waiting == nil {
			h.waiting = map[uint64]uint32{}
		}
	} else {
		h.at(first).leader |= uint64(slot) << 32
	}
	e.leader, e.position, e.flags = uint64(first), 0, e.flags|waits
	h.waiting[e.parent] = slot
}

// unwait removes the block in a slot from the list of its parent's waiting blocks.
func (x *Index) unwait(h *holder, slot uint32) {
	e := h.at(slot)
	before, after := uint32(e.leader>>32), uint32(e.leader)
	if after != 0 {
		a := h.at(after)
		a.leader = uint64(uint32(a.leader)) | uint64(before)<<32
	}
	switch {
	case before != 0:
		b := h.at(before)
		b.leader = b.leader>>32<<32 | uint64(after)
	case after != 0:
		h.waiting[e.parent] = after
	default:
		x.done(h, e.parent)
	}
	e.leader, e.flags = 0, e.flags&^waits
}

// done notes that no block of a holder waits for a parent any more.
func (x *Index) done(h *holder, parent uint64) {
	delete(h.waiting, parent)
	x.chains.waiting--
	if len(h.waiting) == 0 {
		h.waiting = nil // a map does not shrink
	}
}

// settle places blocks whose parents have become known, as many as some says. settle returns true
// if none of these blocks is left.
func (x *Index) settle(some int) bool {
	c := &x.chains
	for ; len(c.ready) > 0 && some > 0; some-- {
		l := c.ready[len(c.ready)-1]
		h, slot := x.waiter(l.own)
		if slot == 0 {
			c.ready = c.ready[:len(c.ready)-1]
			continue
		}
		x.unwait(h, slot)
		if l.position < maxPosition {
			e := h.at(slot)
			x.settled(e, l.after(e.own()))
			x.ring.add(h.Number, e)
		}
	}
	if len(c.ready) == 0 && cap(c.ready) > slabSize {
		c.ready = nil
	}
	return len(c.ready) == 0
}

// waiter returns a block that waits for a parent; slot 0 means no block.
func (x *Index) waiter(parent uint64) (h *holder, slot uint32) {
	for _, h := range x.holders {
		if slot, ok := h.waiting[parent]; ok {
			return h, slot
		}
	}
	return nil, 0
}
