package residency

import "sync/atomic"

// A row says which of a shard's nodes hold which blocks of one group. The row's blocks are those of
// a single chain, beginning with the group's leader. Blocks of other chains with the same leader
// are single (table.go). Rows of consecutive groups are adjacent if there was room.
//
// Readers take no lock. Readers load the head's id, the data, and the id again. Writers change the
// id before they remove its data, and after they add its data.

// segment is an array of rows. All accesses are atomic operations.
type segment struct {
	heads   [segmentRows]head
	tags    [segmentRows][GroupBlocks / 2]uint64 // tags of the leading blocks, two blocks a word; 0 = none
	holders [segmentRows][GroupBlocks]uint64     // a bit for each node, for the blocks with tags
}

type head struct {
	// id is 0 for a free row, else the leader's half of the keys. In a complete row the other half
	// comes from the last block's key, without the block's place. The lowest bit says that the
	// group is crowded.
	id   uint64
	full uint64 // nodes that hold the complete group; in a free row the next free row
}

const (
	segmentRows  = 512
	headBytes    = 16
	segmentBytes = segmentRows * (headBytes + 4*GroupBlocks + 8*GroupBlocks)
	// A crowded group has single blocks.
	crowded = 1
)

// wholeID returns the id of a row with the last block key, without the lowest bit.
func wholeID(key Key) uint64 { return uint64(key) &^ (GroupBlocks - 1) }

// row is a row of a segment; a nil segment means none.
type row struct {
	*segment
	i int
}

func (r row) head() *head { return &r.heads[r.i] }

func (r row) id() uint64 { return atomic.LoadUint64(&r.heads[r.i].id) }

// of says whether this is the row of the block's group.
func (r row) of(key Key) bool { return Key(r.id()).leader() == key.leader() }

func (r row) crowded() bool { return r.id()&crowded != 0 }

// tag returns the tag of the block in a place, or 0 if there is none.
func (r row) tag(place int) uint32 {
	return uint32(atomic.LoadUint64(&r.tags[r.i][place/2]) >> (place % 2 * tagBits))
}

// held says whether the given nodes hold the complete group whose last block is key.
func (r row) held(key Key, nodes uint64) bool {
	h, id := r.head(), wholeID(key)
	return atomic.LoadUint64(&h.id)&^crowded == id && atomic.LoadUint64(&h.full)&nodes == nodes &&
		atomic.LoadUint64(&h.id)&^crowded == id
}

// nextHeld is held for the following row, if it exists.
func (r row) nextHeld(key Key, nodes uint64) bool {
	return r.segment != nil && r.i+1 < segmentRows && row{r.segment, r.i + 1}.held(key, nodes)
}

// block returns the holders of a block by the row. block skips the block's tag if last is the last
// block of its group.
func (r row) block(key, last Key) uint64 {
	holders := &r.holders[r.i][key.place()]
	if r.id()&^crowded == wholeID(last) {
		nodes := atomic.LoadUint64(holders)
		if r.id()&^crowded == wholeID(last) {
			return nodes
		}
	}
	if !r.of(key) || r.tag(key.place()) != key.tag() {
		return 0
	}
	nodes := atomic.LoadUint64(holders)
	if !r.of(key) || r.tag(key.place()) != key.tag() {
		return 0
	}
	return nodes
}

// The methods below are for writers.

func (r row) setID(id uint64) { atomic.StoreUint64(&r.heads[r.i].id, id) }

func (r row) setCrowded(flag uint64) { r.setID(r.heads[r.i].id&^crowded | flag) }

// known returns the number of blocks with tags.
func (r row) known() int {
	n := 0
	for n < GroupBlocks && r.tag(n) != 0 {
		n++
	}
	return n
}

// start makes a free row the row of a run that begins with a leader. Readers of a never used row
// look only at the id, so the rest need not be written atomically.
func (r row) start(run []Key, bit, flag uint64, fresh bool) {
	var tags [GroupBlocks / 2]uint64
	for i, key := range run {
		tags[i/2] |= uint64(key.tag()) << (i % 2 * tagBits)
	}
	id, full := run[0].leader(), uint64(0)
	if len(run) == GroupBlocks {
		id, full = wholeID(run[GroupBlocks-1]), bit
	}
	if fresh {
		for i := range run {
			r.holders[r.i][i] = bit
		}
		r.tags[r.i], r.head().full = tags, full
	} else {
		for i := range run {
			atomic.StoreUint64(&r.holders[r.i][i], bit)
		}
		for i := range tags {
			atomic.StoreUint64(&r.tags[r.i][i], tags[i])
		}
		atomic.StoreUint64(&r.head().full, full)
	}
	r.setID(id | flag)
}

// extend adds blocks behind the known ones.
func (r row) extend(known int, run []Key, bit uint64) {
	for i, key := range run {
		atomic.StoreUint64(&r.holders[r.i][known+i], bit)
		r.setTag(known+i, key.tag())
	}
	if known+len(run) == GroupBlocks {
		r.setFull(bit)
		r.setID(wholeID(run[len(run)-1]) | r.head().id&crowded)
	}
}

func (r row) setTag(place int, tag uint32) {
	word := &r.tags[r.i][place/2]
	shift := place % 2 * tagBits
	atomic.StoreUint64(word, *word&^(tagMask<<shift)|uint64(tag)<<shift)
}

// setFull records whether a node holds all blocks.
func (r row) setFull(bit uint64) {
	all := bit
	for _, holders := range &r.holders[r.i] {
		all &= holders
	}
	if full := r.head().full; full&bit != all {
		atomic.StoreUint64(&r.head().full, full&^bit|all)
	}
}

// hold adds a node to the holders of a known block. first says that the block had no holder.
func (r row) hold(place int, bit uint64) (first bool) {
	holders := r.holders[r.i][place]
	if holders&bit == 0 {
		atomic.StoreUint64(&r.holders[r.i][place], holders|bit)
	}
	return holders == 0
}

// drop removes nodes from the holders of a known block. last says that the block has none left.
func (r row) drop(place int, nodes uint64) (last bool) {
	holders := r.holders[r.i][place]
	if holders&nodes == 0 {
		return false
	}
	if full := r.head().full; full&nodes != 0 {
		atomic.StoreUint64(&r.head().full, full&^nodes)
	}
	atomic.StoreUint64(&r.holders[r.i][place], holders&^nodes)
	return holders&^nodes == 0
}

// shorten removes the last blocks without holders. free says that no block is left and that the row
// must be freed.
func (r row) shorten() (free bool) {
	known := r.known()
	n := known
	for n > 0 && r.holders[r.i][n-1] == 0 {
		n--
	}
	if n == 0 {
		return true
	}
	if n < known {
		id := r.head().id
		r.setID(Key(id).leader() | id&crowded)
	}
	for i := n; i < known; i++ {
		r.setTag(i, 0)
	}
	return false
}
