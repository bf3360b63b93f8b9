package residency

// news is a change of the tiers in which a holder has a block.
type news struct {
	own         uint64 // first 8 bytes of the block's digest
	parent      uint64 // first 8 bytes of the parent's digest; 0: none, or unknown
	layer       uint32
	namespace   uint16
	add, remove Tiers
	adapter     uint8 // the adapter's number in the holder; 0: none, or unknown
}

// set applies news. set tells watchers if the news changes anything.
func (x *Index) set(h *holder, n *news) {
	slot := h.find(n.own, n.namespace, n.layer)
	if slot == 0 {
		x.enter(h, n)
		return
	}
	e := h.at(slot)
	was := e.tiers
	is := (was | n.add) &^ n.remove
	if is&anyTier == 0 {
		x.drop(h, slot)
		return
	}
	x.count(h, e, -1)
	if e.tiers = is; n.adapter != 0 {
		e.setAdapter(n.adapter)
	}
	x.count(h, e, 1)
	later := n.parent != 0 && e.parent == 0
	if later {
		x.follow(h, slot, n.parent)
	}
	if later || e.tiers != was {
		x.tell(h, e)
	}
}

// tell tells watchers the present state of a holder's block.
func (x *Index) tell(h *holder, e *entry) {
	x.ring.add(h.Number, e)
	if h == x.own && len(x.namespaces.families) > 0 {
		x.tellFirst(e)
	}
}

// enter adds a block that the holder did not have. enter returns the block's slot, or 0 if it left
// the block out.
func (x *Index) enter(h *holder, n *news) (slot uint32) {
	if n.add == 0 {
		return 0
	}
	if x.blocks >= x.maxBlocks && !(n.add&Pinned != 0 && x.displace(h)) {
		x.stats.Overflow++
		return 0
	}
	slot = h.insert(n.own, n.namespace, n.layer)
	x.blocks++
	x.gained(h, n.namespace)
	e := h.at(slot)
	e.parent, e.tiers = n.parent, n.add
	e.setAdapter(n.adapter)
	x.count(h, e, 1)
	x.place(h, slot)
	x.tell(h, e)
	if h != x.own && n.parent != 0 {
		x.adopt(n)
	}
	return slot
}

// adopt gives a block of the daemon without a known parent the parent that an engine has reported.
func (x *Index) adopt(n *news) {
	slot := x.own.find(n.own, n.namespace, n.layer)
	if slot == 0 {
		return
	}
	if e := x.own.at(slot); e.parent == 0 {
		x.follow(x.own, slot, n.parent)
		x.ring.add(x.own.Number, e)
	}
}

// follow gives a block without a known parent its parent, and so another place. Watchers know a
// block by its place, so they are told first that it is gone from the old one. The caller tells the
// new one.
func (x *Index) follow(h *holder, slot uint32, parent uint64) {
	e := h.at(slot)
	if e.position != 0 {
		gone := *e
		gone.tiers = 0
		x.ring.add(h.Number, &gone)
	}
	e.parent = parent
	x.place(h, slot)
}

// displaceSearch bounds the slots searched for a block that gives way to a pinned one.
const displaceSearch = 64

// displace drops an unpinned block of an engine for a pinned one. displace returns false if no
// unpinned block is nearby.
func (x *Index) displace(h *holder) bool {
	for range min(displaceSearch, h.used) {
		if h.hand++; h.hand > h.used {
			h.hand = 1
		}
		if e := h.at(h.hand); e.tiers != 0 && e.tiers&Pinned == 0 {
			x.drop(h, h.hand)
			x.stats.Displaced++
			return true
		}
	}
	return false
}

// drop removes a block that its holder has in no tier any more.
func (x *Index) drop(h *holder, slot uint32) {
	e := h.at(slot)
	if e.waits() {
		x.unwait(h, slot)
	}
	x.count(h, e, -1)
	e.tiers = 0
	x.lost(h, e.namespace, 1)
	x.tell(h, e)
	h.remove(slot)
	x.blocks--
}

// join makes a holder without blocks.
func (x *Index) join(engine string, epoch uint64) *holder {
	x.last++
	h := &holder{Holder: Holder{Number: x.last, Engine: engine, Epoch: epoch}, heldBlocks: newHeldBlocks(x.seeds)}
	if engine != "" {
		h.usage = newUsage()
	}
	x.holders[h.Number] = h
	x.ring.mark(h.Number, markJoined)
	return h
}

// leave forgets a holder with all its blocks, in constant time.
func (x *Index) leave(h *holder) {
	for i, count := range h.spaces {
		if count > 0 {
			x.lost(h, uint16(i), count)
		}
	}
	x.chains.waiting -= len(h.waiting)
	x.blocks -= h.count
	x.stats.Pinned -= h.usage.pinned()
	delete(x.holders, h.Number)
	delete(x.engines, h.Engine)
	x.ring.mark(h.Number, markGone)
	if h.reads != nil {
		x.tellReaders()
	}
}
