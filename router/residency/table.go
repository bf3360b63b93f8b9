package residency

import "sync/atomic"

// holderTable says which of up to 64 nodes hold which blocks. holderTable has a row for each group
// (row.go), and a map. The map gives the row for the leader's half of a key, and the holders of a
// single block for its whole key. A single block departs from the row's chain within the group, or
// found no free row. A block may have holders in both places, if the row belonged to another chain
// before.
//
// The table grows by segments, which never move, and by copies of the map. Readers do not wait for
// a copy; a writer waits about 20 ns for each group.
type holderTable struct {
	slots    atomic.Pointer[slots]
	segments []atomic.Pointer[segment]
	blocks   int
	singles  int // number of single blocks
	top      int // rows used so far
	free     int // 1 + the first free row, which links to the next free row
}

// The map's value for a leader has the number of its group's single blocks in the upper half, and 1
// + its row in the lower half, 0 = none.
const (
	oneSingle = 1 << 32
	rowMask   = oneSingle - 1
)

// expectedBlocks is the least average number of blocks in a row, which has room for GroupBlocks.
// The end of a prompt has fewer. If rows have fewer on average, more blocks become single.
const expectedBlocks = GroupBlocks * 3 / 4

// newHolderTable returns an empty table with rows for the given number of blocks.
func newHolderTable(blocks int) *holderTable {
	n := (blocks/expectedBlocks + segmentRows) / segmentRows
	t := &holderTable{segments: make([]atomic.Pointer[segment], n)}
	t.slots.Store(newSlots(0))
	return t
}

func (t *holderTable) bytes() int {
	return (t.top+segmentRows-1)/segmentRows*segmentBytes + len(t.slots.Load().buckets)*bucketBytes
}

// row returns row n. Every row in the map exists.
func (t *holderTable) row(n int) row {
	return row{t.segments[n/segmentRows].Load(), n % segmentRows}
}

// seek returns the row of a block's group for a reader, if there is one, and whether the group is
// crowded. seek tries the row behind before first, if before is a row.
func (t *holderTable) seek(key Key, before row) (r row, isCrowded bool) {
	if before.segment != nil && before.i+1 < segmentRows {
		before.i++
		if before.of(key) {
			return before, before.crowded()
		}
	}
	at := t.slots.Load().get(key.leader())
	if n := int(at & rowMask); n > 0 {
		return t.row(n - 1), at >= oneSingle
	}
	return row{}, at >= oneSingle
}

// single returns the holders of a single block for a reader.
func (t *holderTable) single(key Key) uint64 { return t.slots.Load().get(uint64(key)) }

// The methods below are for writers.

// find returns the number of a group's row, or -1, and whether the group is crowded. find tries row
// near first, unless near is negative.
func (t *holderTable) find(leader uint64, near int) (n int, isCrowded bool) {
	if near >= 0 && near < t.top {
		if r := t.row(near); Key(r.id()).leader() == leader {
			return near, r.crowded()
		}
	}
	if b, i := t.slots.Load().find(leader); b != nil {
		return int(b.values[i]&rowMask) - 1, b.values[i] >= oneSingle
	}
	return -1, false
}

// newRow returns a free row, or -1 if there is none. The last freed row comes first. Rows of
// consecutive groups are freed from the end on, so they are reused in their order.
func (t *holderTable) newRow() int {
	if n := t.free - 1; n >= 0 {
		t.free = int(t.row(n).head().full)
		return n
	}
	if t.top == len(t.segments)*segmentRows {
		return -1
	}
	if t.top%segmentRows == 0 && t.segments[t.top/segmentRows].Load() == nil {
		t.segments[t.top/segmentRows].Store(new(segment))
	}
	t.top++
	return t.top - 1
}

// freeRow removes a row without blocks from its group.
func (t *holderTable) freeRow(n int) {
	r := t.row(n)
	leader := Key(r.id()).leader()
	r.setID(0)
	atomic.StoreUint64(&r.head().full, uint64(t.free))
	t.free = n + 1
	t.note(leader, ^uint64(n+1)+1)
}

// put adds to the map. put returns false without room.
func (t *holderTable) put(key, value uint64) bool {
	m := t.slots.Load()
	if m.full() {
		m = m.copied()
		t.slots.Store(m)
	}
	return m.put(key, value)
}

// note adds delta to the map's value for a leader. note returns false without room.
func (t *holderTable) note(leader, delta uint64) bool {
	m := t.slots.Load()
	b, i := m.find(leader)
	if b == nil {
		return t.put(leader, delta)
	}
	value := b.values[i] + delta
	if value == 0 {
		m.remove(b, i)
	} else {
		atomic.StoreUint64(&b.values[i], value)
	}
	return true
}

// store adds a node to the holders of a run of blocks behind parent. At most room of the added
// blocks may be new to the table. store returns the number of added blocks, and the number of the
// run's row or -1. near may be that row.
func (t *holderTable) store(run []Key, parent Key, bit uint64, near, room int) (done, n int) {
	n, isCrowded := t.find(run[0].leader(), near)
	if n >= 0 {
		done, room = t.storeKnown(t.row(n), run, parent, bit, room)
	} else if run[0].place() == 0 && room > 0 {
		top := t.top
		if n = t.newRow(); n >= 0 {
			done = t.startRow(n, run[:min(len(run), room)], bit, isCrowded, n == top)
			room -= done
		}
	}
	for ; done < len(run); done++ {
		added, ok := t.storeSingle(run[done], bit, room)
		if !ok {
			break
		}
		room -= added
	}
	return done, n
}

func (t *holderTable) startRow(n int, run []Key, bit uint64, isCrowded, fresh bool) int {
	r, flag := t.row(n), uint64(0)
	if isCrowded {
		flag = crowded
	}
	r.start(run, bit, flag, fresh)
	if !t.note(run[0].leader(), uint64(n)+1) {
		for i := range run {
			r.drop(i, bit)
		}
		r.setID(0)
		atomic.StoreUint64(&r.head().full, uint64(t.free))
		t.free = n + 1
		return 0
	}
	t.blocks += len(run)
	return len(run)
}

// storeKnown is store for the blocks of the row's chain.
func (t *holderTable) storeKnown(r row, run []Key, parent Key, bit uint64, room int) (done, left int) {
	from, known := run[0].place(), r.known()
	for ; done < len(run) && from+done < known && r.tag(from+done) == run[done].tag(); done++ {
		if r.holders[r.i][from+done] == 0 && room == 0 {
			return done, 0
		}
		if r.hold(from+done, bit) {
			t.blocks++
			room--
		}
	}
	follows := done > 0 || from > 0 && parent.leader() == run[0].leader() && r.tag(from-1) == parent.tag()
	if more := run[done:][:min(len(run)-done, room)]; from+done == known && follows && len(more) > 0 {
		r.extend(known, more, bit)
		t.blocks += len(more)
		done += len(more)
		room -= len(more)
	} else if known == GroupBlocks && done > 0 {
		r.setFull(bit)
	}
	return done, room
}

// storeSingle returns the number of new blocks. ok is false without room.
func (t *holderTable) storeSingle(key Key, bit uint64, room int) (added int, ok bool) {
	if b, i := t.slots.Load().find(uint64(key)); b != nil {
		if held := b.values[i]; held&bit == 0 {
			atomic.StoreUint64(&b.values[i], held|bit)
		}
		return 0, true
	}
	if room == 0 || !t.note(key.leader(), oneSingle) {
		return 0, false
	}
	if !t.put(uint64(key), bit) {
		t.note(key.leader(), ^uint64(oneSingle)+1)
		return 0, false
	}
	if n, _ := t.find(key.leader(), -1); n >= 0 {
		t.row(n).setCrowded(crowded)
	}
	t.singles++
	t.blocks++
	return 1, true
}

// remove removes nodes from the holders of blocks of one group. remove returns the number of the
// group's row or -1. near may be that row.
func (t *holderTable) remove(keys []Key, nodes uint64, near int) int {
	n, isCrowded := t.find(keys[0].leader(), near)
	if n >= 0 {
		r, gone := t.row(n), 0
		for _, key := range keys {
			if r.tag(key.place()) == key.tag() && r.drop(key.place(), nodes) {
				gone++
			}
		}
		t.dropped(n, gone)
	}
	if isCrowded {
		for _, key := range keys {
			if b, i := t.slots.Load().find(uint64(key)); b != nil {
				t.dropSingle(b, i, nodes)
			}
		}
	}
	return n
}

// dropped is called when blocks of a row have lost their last holders.
func (t *holderTable) dropped(n, gone int) {
	t.blocks -= gone
	if gone > 0 && t.row(n).shorten() {
		t.freeRow(n)
	}
}

func (t *holderTable) dropSingle(b *bucket, i int, nodes uint64) {
	held := b.values[i]
	if left := held &^ nodes; left != 0 {
		if left != held {
			atomic.StoreUint64(&b.values[i], left)
		}
		return
	}
	leader := Key(b.keys[i]).leader()
	t.slots.Load().remove(b, i)
	t.note(leader, ^uint64(oneSingle)+1)
	if n, isCrowded := t.find(leader, -1); n >= 0 && !isCrowded {
		t.row(n).setCrowded(0)
	}
	t.singles--
	t.blocks--
}

// sweepRow removes nodes from the holders of row n.
func (t *holderTable) sweepRow(n int, nodes uint64) {
	r, gone := t.row(n), 0
	if r.id() == 0 {
		return
	}
	for place := range r.known() {
		if r.drop(place, nodes) {
			gone++
		}
	}
	t.dropped(n, gone)
}

// sweepBucket removes nodes from the holders of the single blocks in a bucket.
func (t *holderTable) sweepBucket(b *bucket, nodes uint64) {
	for i, key := range &b.keys {
		if key&tagMask > dead {
			t.dropSingle(b, i, nodes)
		}
	}
}
