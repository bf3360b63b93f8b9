package residency

import "sync/atomic"

// A row is what a shard's nodes hold of one group. It has the blocks of a single chain, the first
// of which is the group's leader; blocks of other chains with the same leader are single
// (table.go). Rows of consecutive groups lie one after the other where there was room when they
// were stored.
//
// Readers take no lock: they load the head's id, what they want to know, and the id again. Writers
// change the id before what it stands for is taken away, and after it was put there.

// segment is an array of rows. It is read and written by atomic operations.
type segment struct {
	heads   [segmentRows]head
	tags    [segmentRows][GroupBlocks / 2]uint64 // two blocks a word; of the leading blocks, 0 = none
	holders [segmentRows][GroupBlocks]uint64     // of the blocks that have tags, a bit for each node
}

type head struct {
	// id is 0 if the row is free, else the leader's half of the keys. If the row has all blocks,
	// the other half is that of the last block's key without its place. The lowest bit says that
	// the group is crowded.
	id   uint64
	full uint64 // nodes that hold all of its blocks, if those are all of the group; of a free row the next free one
}

const (
	segmentRows  = 512
	headBytes    = 16
	segmentBytes = segmentRows * (headBytes + 4*GroupBlocks + 8*GroupBlocks)
	// crowded groups have single blocks.
	crowded = 1
)

// wholeID is the id of a row whose last block is key, but for the lowest bit.
func wholeID(key Key) uint64 { return uint64(key) &^ (GroupBlocks - 1) }

// row is a place in a segment; none if that is nil.
type row struct {
	*segment
	i int
}

func (r row) head() *head { return &r.heads[r.i] }

func (r row) id() uint64 { return atomic.LoadUint64(&r.heads[r.i].id) }

// of says whether this is the row of the group of a block.
func (r row) of(key Key) bool { return Key(r.id()).leader() == key.leader() }

func (r row) crowded() bool { return r.id()&crowded != 0 }

// tag is that of the block in a place; 0 if there is none.
func (r row) tag(place int) uint32 {
	return uint32(atomic.LoadUint64(&r.tags[r.i][place/2]) >> (place % 2 * tagBits))
}

// held says whether some nodes hold all blocks of the group whose last is key.
func (r row) held(key Key, nodes uint64) bool {
	h, id := r.head(), wholeID(key)
	return atomic.LoadUint64(&h.id)&^crowded == id && atomic.LoadUint64(&h.full)&nodes == nodes &&
		atomic.LoadUint64(&h.id)&^crowded == id
}

// nextHeld is held of the row behind this one, if there are both.
func (r row) nextHeld(key Key, nodes uint64) bool {
	return r.segment != nil && r.i+1 < segmentRows && row{r.segment, r.i + 1}.held(key, nodes)
}

// block is who holds a block according to the row. If last is the last block of its group, its tag
// need not be looked at.
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

// What follows is for writers.

func (r row) setID(id uint64) { atomic.StoreUint64(&r.heads[r.i].id, id) }

func (r row) setCrowded(flag uint64) { r.setID(r.heads[r.i].id&^crowded | flag) }

// known is the number of blocks that have tags.
func (r row) known() int {
	n := 0
	for n < GroupBlocks && r.tag(n) != 0 {
		n++
	}
	return n
}

// start makes a free row one of a run of blocks that begins with a leader. Of a row that was never
// used readers look at nothing but the id, so that the rest need not be written atomically.
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

// extend adds blocks behind those that are known.
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

// setFull notes whether a node holds all blocks.
func (r row) setFull(bit uint64) {
	all := bit
	for _, holders := range &r.holders[r.i] {
		all &= holders
	}
	if full := r.head().full; full&bit != all {
		atomic.StoreUint64(&r.head().full, full&^bit|all)
	}
}

// hold adds a node to the holders of a known block; true if it had none.
func (r row) hold(place int, bit uint64) (first bool) {
	holders := r.holders[r.i][place]
	if holders&bit == 0 {
		atomic.StoreUint64(&r.holders[r.i][place], holders|bit)
	}
	return holders == 0
}

// drop takes nodes from the holders of a known block; true if it has none any more.
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

// shorten lets go of the last blocks while nobody holds them; true if none is left: the row is to
// be freed.
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
