package ram

import "math/bits"

// Bounds of the search for a window.
const (
	windowSeeds  = 8     // free pieces, the largest
	windowPieces = 6144  // pieces around each seed; more than a block of 20 MiB replaces if all pieces have 4 KiB
	windowBudget = 12288 // in all
)

// treeAtOnce is how many descendants of one block are evicted in one step.
const treeAtOnce = 8

// window is a run of neighbouring pieces that are free or hold evictable blocks.
type window struct {
	t           *Tier
	left, right uint32 // pieces; right is the last
	size        uint32 // granules
	cost        uint64 // of evicting its blocks
	oldest      uint64 // stamp
	over        int    // the part that evicts next
}

// span is the best window so far.
type span struct {
	left, right uint32
	cost        uint64
}

// findWindow notes in room the cheapest run of neighbours that would make a free piece of need
// granules. It looks near the largest free pieces.
func (t *Tier) findWindow(need uint32, room *Room) bool {
	oldest, any := t.oldestStamp()
	if !any {
		return false
	}
	var best span
	budget := windowBudget
	t.extents.largestPieces(windowSeeds, func(seed uint32) { t.slide(seed, need, oldest, &budget, &best) })
	if best.right == 0 {
		return false
	}
	pieces := &t.extents.pieces
	for id := best.left; ; id = pieces.at(id).next {
		if p := pieces.at(id); p.used() {
			room.window = append(room.window, ID(p.mark))
		}
		if id == best.right {
			break
		}
	}
	last := pieces.at(best.right)
	room.from, room.to = pieces.at(best.left).place(), last.place()+last.size
	return true
}

// evictNext evicts the next block of a window, or some of its descendants.
func (t *Tier) evictNext(room *Room) (granules uint32) {
	last := len(room.window) - 1
	id := room.window[last]
	if t.within(id, room) {
		granules = t.evictTree(id, room)
	}
	if granules == 0 || !t.within(id, room) {
		room.window, room.tree = room.window[:last], 0
	}
	return granules
}

// within tells whether this number is a block in the window, though perhaps another block than
// before.
func (t *Tier) within(id ID, room *Room) bool {
	e := t.At(id)
	if e.body == 0 {
		return false
	}
	at := t.extents.pieces.at(uint32(e.body)).place()
	return at >= room.from && at < room.to
}

// largestPieces calls visit with up to n free pieces, roughly the largest first.
func (x *extents) largestPieces(n int, visit func(uint32)) {
	for row := x.row; row != 0; {
		r := bits.Len64(row) - 1
		row &^= 1 << r
		for column := x.column[r]; column != 0; {
			c := bits.Len32(column) - 1
			column &^= 1 << c
			for id := x.head[r][c]; id != 0; id = x.pieces.at(id).mark {
				if n--; n < 0 {
					return
				}
				visit(id)
			}
		}
	}
}

// slide moves a window over the neighbourhood of a free piece.
func (t *Tier) slide(seed, need uint32, oldest uint64, budget *int, best *span) {
	x := t.extents
	left := seed
	for n, size := 0, uint32(0); n < windowPieces/2 && size < need && *budget > 0; n, *budget = n+1, *budget-1 {
		p := x.pieces.at(left).prev
		if p == 0 || !t.movable(p) {
			break
		}
		left, size = p, size+x.pieces.at(p).size
	}
	s := x.pieces.at(seed)
	w := window{t: t, left: left, oldest: oldest, over: t.over()}
	end := s.place() + s.size + need
	for id, n := left, 0; id != 0 && n < windowPieces && x.pieces.at(id).place() < end && t.movable(id) &&
		*budget > 0; n++ {
		*budget--
		w.add(id)
		for w.size-x.pieces.at(w.left).size >= need {
			w.shrink()
		}
		if w.size >= need && (best.right == 0 || w.cost < best.cost) {
			*best = span{w.left, w.right, w.cost}
		}
		id = x.pieces.at(id).next
	}
	for w.size > 0 {
		w.shrink()
	}
}

// movable tells whether a piece is free or holds a block that could be evicted as a leaf.
func (t *Tier) movable(id uint32) bool {
	p := t.extents.pieces.at(id)
	return !p.used() || p.link == 0 && p.mark != 0 && t.At(ID(p.mark)).pins == 0
}

func (w *window) add(id uint32) {
	p := w.t.extents.pieces.at(id)
	w.right = id
	w.size += p.size
	if p.used() {
		w.cost += w.price(w.t.At(ID(p.mark)), p.size)
	}
}

// shrink removes the first piece.
func (w *window) shrink() {
	p := w.t.extents.pieces.at(w.left)
	w.size -= p.size
	w.left = p.next
	if p.used() {
		w.cost -= w.price(w.t.At(ID(p.mark)), p.size)
	}
}

// price is the cost of evicting size granules. The newest block costs four times the oldest. The
// cost doubles for blocks with children, which may lie elsewhere, and for the part that does not
// evict next.
func (w *window) price(e *Entry, size uint32) uint64 {
	const newest = 3 * 16
	age := uint64(newest)
	if all := w.t.clock - w.oldest; all > 0 {
		age = newest * (max(e.stamp, w.oldest) - w.oldest) / all
	}
	price := uint64(size) * (16 + age)
	if e.kid != 0 {
		price *= 2
	}
	if e.part() != w.over {
		price *= 2
	}
	return price
}

// evictTree evicts a block after its descendants, at most treeAtOnce blocks in one call. The next
// call continues where this one has stopped, because the way to a leaf may be long.
func (t *Tier) evictTree(id ID, room *Room) (granules uint32) {
	at := room.tree
	if at == 0 || t.At(at).body == 0 && t.At(at).kid == 0 {
		at = id
	}
	for range treeAtOnce {
		for t.At(at).kid != 0 {
			at = t.At(at).kid
		}
		if !t.evictable(t.At(at)) {
			return granules
		}
		parent := t.At(at).parent
		granules += t.evict(at)
		if room.tree = parent; at == id || parent == 0 {
			return granules
		}
		at = parent
	}
	return granules
}
