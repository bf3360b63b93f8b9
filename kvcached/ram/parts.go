package ram

// The blocks are in two parts, as ARC (Megiddo and Modha, FAST 2003) has them: those that one
// prompt has used, and those that several have. Each part is evicted leaves first, the one unused
// for longest before others. Where the boundary between the two lies follows from the names of what
// was evicted: one that comes back moves it towards the part that it was in. Package evict compares
// this with other policies and calls it leaf-arc.
const (
	recent = iota
	frequent
)

// Bits of an entry's state. The first two say of which parts it has a place in the heap; one at
// most is that of its part.
const (
	inHeaps = 1<<recent | 1<<frequent
	often   = 4 // it is in the frequent part
	fresh   = 8 // it has come, and its prompt was not touched since
)

// The recent part may have four fifths of the room at first, and a frequent block's return counts
// twice: a prompt's blocks come back together, so that each return moves the boundary by a prompt's
// length.
const (
	targetStart    = 0.8
	frequentWeight = 2
)

// half is one of the two parts.
type half struct {
	queue
	size uint32 // granules
}

func (e *Entry) part() int { return int(e.state & often / often) }

// promote moves a block to the frequent part.
func (t *Tier) promote(id ID, e *Entry) {
	if e.state&often != 0 {
		return
	}
	size := t.extents.pieces.at(uint32(e.body)).size
	t.parts[recent].size -= size
	t.parts[frequent].size += size
	e.state |= often
	t.settle(id)
}

// recall puts a block that comes, of size granules, into the part that is its, and moves the
// boundary if it was evicted not long ago.
func (t *Tier) recall(h uint64, e *Entry, size uint32) {
	was, known := t.ghosts.take(h)
	if !known {
		return
	}
	e.state |= often
	left := [2]int64{t.ghosts.of[recent].size, t.ghosts.of[frequent].size}
	left[was] += int64(size)
	step := int64(size) * max(left[1-was]/max(left[was], 1), 1)
	if was == recent {
		t.target = min(t.target+step, t.granules())
	} else {
		t.target = max(t.target-frequentWeight*step, 0)
	}
}

func (t *Tier) granules() int64 { return t.arena.Size() / Granule }

// over is the part of which a block is to go.
func (t *Tier) over() int {
	if int64(t.parts[recent].size) > t.target {
		return recent
	}
	return frequent
}

// victim is the block to evict next, keep only where there is no other; 0: there is none.
func (t *Tier) victim(keep ID) ID {
	p := t.over()
	for _, find := range [...]func(int, ID) ID{t.leaf, t.oldest} {
		if id := find(p, keep); id != 0 {
			return id
		}
		if id := find(1-p, keep); id != 0 {
			return id
		}
	}
	if keep != 0 && t.evictable(t.At(keep)) {
		return keep
	}
	return 0
}

// oldestStamp is about that of the block unused for longest; false: there is none that may go.
func (t *Tier) oldestStamp() (stamp uint64, any bool) {
	for p := range t.parts {
		if id := t.front(p, 0); id != 0 && (!any || t.At(id).stamp < stamp) {
			stamp, any = t.At(id).stamp, true
		}
	}
	return stamp, any
}

// leastGhosts is how many names may be remembered however few blocks there are.
const leastGhosts = 512

// forgetAtOnce is how many names one more may take the place of.
const forgetAtOnce = 4

// remember keeps the name of a block that is evicted: of no more than the arena could hold, and no
// more than there are blocks.
func (t *Tier) remember(h uint64, e *Entry, size uint32) {
	g := &t.ghosts
	g.add(h, e.part(), size)
	for range forgetAtOnce {
		if g.of[recent].size+g.of[frequent].size <= t.granules() && g.count <= uint32(max(t.blocks, leastGhosts)) {
			return
		}
		g.forget()
	}
}
