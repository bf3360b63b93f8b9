package ram

// The blocks are in two parts, as in ARC (Megiddo and Modha, FAST 2003): blocks used by one prompt,
// and blocks used by several. Each part evicts leaves first, the least recently used leaf before
// others. The names of evicted blocks set the boundary between the parts: a block that comes back
// moves it in favour of its former part. Package evict compares this policy with others and calls
// it leaf-arc.
const (
	recent = iota
	frequent
)

// Bits of an entry's state. The first two tell in which parts' heaps the entry has a place. It
// belongs to one part only.
const (
	inHeaps = 1<<recent | 1<<frequent
	often   = 4 // the entry is in the frequent part
	fresh   = 8 // the entry is new: its prompt was not touched since
)

// The recent part starts with targetStart of the room. An evicted block that returns moves the
// boundary between the parts. A frequent block moves it frequentWeight times as far, because a
// prompt's blocks return together, and each return moves the boundary by a prompt's length.
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

// recall puts a new block of size granules into its part, and moves the boundary if the block was
// evicted not long ago.
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

// over returns the part that evicts next.
func (t *Tier) over() int {
	if int64(t.parts[recent].size) > t.target {
		return recent
	}
	return frequent
}

// victim returns the block to evict next; 0: there is none. It returns keep only if there is no
// other.
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

// oldestStamp returns roughly the stamp of the least recently used block. false: no block may be
// evicted.
func (t *Tier) oldestStamp() (stamp uint64, any bool) {
	for p := range t.parts {
		if id := t.front(p, 0); id != 0 && (!any || t.At(id).stamp < stamp) {
			stamp, any = t.At(id).stamp, true
		}
	}
	return stamp, any
}

// leastGhosts is how many names of evicted blocks are remembered, even with few blocks.
const leastGhosts = 512

// forgetAtOnce is how many names may be forgotten for one new name.
const forgetAtOnce = 4

// remember keeps the name of an evicted block. The remembered blocks would fit into the arena, and
// there are no more names than blocks.
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
