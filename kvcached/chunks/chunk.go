package chunks

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// chunk is one that has parts, or was told. It has neither pointers nor padding.
type chunk struct {
	id    [7]byte    // of its id, the hash of its family and name; a ref has the first byte
	place block.Name // of a told chunk, read by Table.parent: its parent, or once it is linked the number of its link
	// blocks is the name of the block, if a told chunk has one part and one block. Otherwise it is
	// the number of the record. The record has the tally, if the chunk has several parts, the names
	// of the blocks, and the chunk's own name, if its keys follow from that.
	blocks [8]byte
	bits   [2]byte
}

// The bits of a chunk.
const (
	originBits = 11 // number of its origin; 0: not told
	originMask = 1<<originBits - 1
	disputed   = 1 << originBits
	single     = 1 << (originBits + 1) // no chunk of the family has more than one part
	tiersShift = originBits + 1        // of the tiers of a single part: two bits behind single
	linked     = 1 << (originBits + 4) // in the queue of idle chunks, so a link has the parent
)

func (h *chunk) get() uint16     { return binary.LittleEndian.Uint16(h.bits[:]) }
func (h *chunk) put(bits uint16) { binary.LittleEndian.PutUint16(h.bits[:], bits) }
func (h *chunk) origin() uint32  { return uint32(h.get() & originMask) }
func (h *chunk) is(bit int) bool { return h.get()&uint16(bit) != 0 }
func (h *chunk) record() uint32  { return binary.LittleEndian.Uint32(h.blocks[:]) }

// parent returns the name of the block before a told chunk.
func (t *Table) parent(h *chunk) block.Name {
	if h.is(linked) {
		return t.idle.links[h.link()].parent
	}
	return h.place
}

// link returns the number of a linked chunk's link.
func (h *chunk) link() uint32 { return binary.LittleEndian.Uint32(h.place[:]) }

// tally says how many parts of a chunk are here.
type tally struct {
	any, host, disk uint32 // in any tier, and in each
	layers          uint32 // 1 + the largest layer of a part
}

const (
	tallyBytes = 16
	nameBytes  = 8 // of a chunk
)

func (t *Table) chunk(r ref) *chunk { return &t.chunks.at(r.number())[0] }

// key returns the id of a chunk.
func (t *Table) key(r ref) uint64 {
	h := t.chunk(r)
	low := uint64(h.id[0]) | uint64(h.id[1])<<8 | uint64(h.id[2])<<16
	return uint64(r>>numberBits)<<(64-shardBits) | uint64(h.hash())<<24 | low
}

// hash returns what split returns of the id.
func (h *chunk) hash() uint32 { return binary.LittleEndian.Uint32(h.id[3:]) }

// record returns a chunk's record; nil: it needs none.
func (t *Table) record(h *chunk) []byte {
	if size := t.size(h); size > 0 {
		return t.records[size/block.NameBytes].at(h.record())
	}
	return nil
}

// size returns the length of a chunk's record.
func (t *Table) size(h *chunk) (size int) {
	if o := h.origin(); o != 0 {
		key := &t.origins.at(o).key
		if size = key.tokens / block.Tokens * block.NameBytes; key.Scheme.Derived() {
			size += nameBytes
		}
	}
	switch {
	case !h.is(single):
		size += tallyBytes
	case size == block.NameBytes:
		size = 0
	}
	return size
}

// blocks returns the names of a told chunk's blocks.
func (t *Table) blocks(h *chunk) []byte {
	r := t.record(h)
	if r == nil {
		return h.blocks[:]
	}
	if !h.is(single) {
		r = r[tallyBytes:]
	}
	if t.derived(h) {
		r = r[:len(r)-nameBytes]
	}
	return r
}

// derived says whether the keys of a told chunk follow from its name.
func (t *Table) derived(h *chunk) bool { return t.origins.at(h.origin()).key.Scheme.Derived() }

// name returns the name of a told chunk whose keys follow from it.
func (t *Table) name(h *chunk) alias.Name {
	r := t.record(h)
	return alias.Name(binary.LittleEndian.Uint64(r[len(r)-nameBytes:]))
}

func (t *Table) tally(h *chunk) (l tally) {
	if h.is(single) {
		l.add(residency.Tiers(h.get()>>tiersShift)&anyTier, 1)
		return l
	}
	r, le := t.record(h), binary.LittleEndian
	return tally{le.Uint32(r), le.Uint32(r[4:]), le.Uint32(r[8:]), le.Uint32(r[12:])}
}

// count counts a part that was in some tiers and is in others now, and its layer.
func (t *Table) count(h *chunk, was, is residency.Tiers, layer uint32) {
	if h.is(single) {
		h.put(h.get()&^(uint16(anyTier)<<tiersShift) | uint16(is)<<tiersShift)
		return
	}
	l := t.tally(h)
	l.add(was, -1)
	l.add(is, 1)
	if layer != alias.NoLayer {
		l.layers = max(l.layers, 1+layer)
	}
	t.setTally(h, &l)
}

// add adds a part in tiers, or subtracts it.
func (l *tally) add(tiers residency.Tiers, by int32) {
	if tiers != 0 {
		l.any += uint32(by)
	}
	if tiers&residency.Host != 0 {
		l.host += uint32(by)
	}
	if tiers&residency.Disk != 0 {
		l.disk += uint32(by)
	}
}

const anyTier = residency.Host | residency.Disk

// setTally records the tally of a chunk that is not single.
func (t *Table) setTally(h *chunk, l *tally) {
	b, le := t.record(h)[:0], binary.LittleEndian
	for _, n := range [...]uint32{l.any, l.host, l.disk, l.layers} {
		b = le.AppendUint32(b, n)
	}
}

// set records what a chunk stands for. The caller has taken hold of the origin.
func (t *Table) set(h *chunk, origin uint32, c *alias.Chunk) {
	l := t.tally(h)
	t.drop(h)
	h.put(h.get() | uint16(origin))
	t.make(h)
	if !h.is(single) {
		t.setTally(h, &l)
	}
	h.place = c.Parent
	copy(t.blocks(h), c.Blocks)
	if t.derived(h) {
		r := t.record(h)
		binary.LittleEndian.PutUint64(r[len(r)-nameBytes:], uint64(c.Name))
	}
}

// make makes the record that a chunk needs.
func (t *Table) make(h *chunk) {
	if size := t.size(h); size > 0 {
		binary.LittleEndian.PutUint32(h.blocks[:], t.records[size/block.NameBytes].add())
	}
}

// drop drops a chunk's record and origin.
func (t *Table) drop(h *chunk) {
	if size := t.size(h); size > 0 {
		t.records[size/block.NameBytes].drop(h.record())
	}
	if o := h.origin(); o != 0 {
		t.origins.drop(o)
	}
	h.put(h.get() &^ originMask)
}
