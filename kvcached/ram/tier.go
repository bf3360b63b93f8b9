package ram

import (
	"github.com/cognitora/dataplane/kv/block"
)

// Ext is a piece of the arena. Zero is none.
type Ext uint32

// TierOptions configure a Tier.
type TierOptions struct {
	// Quota returns the account that a namespace's bytes are counted on, and its limit in bytes; 0:
	// no limit. An empty account is the namespace's own. Nil: no limits.
	Quota func(namespace string) (account string, bytes int64)
	// Evicted is called before a block goes to make room. Nil: nobody is told.
	Evicted func(ID)
	// Pins is how many pins there may be; 0: 16,384.
	Pins int
}

// Tier knows the contents of an arena. Its methods, except Hash, must not run at the same time.
type Tier struct {
	arena   *Arena
	table   *entryIndex
	extents *extents
	names   *Names
	parts   [2]half
	target  int64 // size of the recent part, granules
	ghosts  ghosts
	clock   uint64
	pins    pins
	o       TierOptions

	blocks int
	held   uint32 // granules that somebody reads or fills
	pinned uint32 // granules
	counts Counts
}

// Counts counts the events of a Tier since it was made.
type Counts struct {
	Evictions    uint64 // blocks that went to make room
	EvictedBytes uint64 // of the arena
	Cycles       uint64 // links to a parent that were dropped to avoid a cycle
	QuotaEvicted uint64 // blocks evicted because their account was at its limit
}

// Usage is how a Tier's arena is used, in bytes unless a field says otherwise.
type Usage struct {
	Counts
	Size, Free, Largest int64 // Largest is the largest free piece, to within a sixteenth
	Held, Pinned        int64 // of Size
	Names               int   // of evicted blocks, remembered
	Blocks, Namespaces  int   // resident; with blocks
	NamespacesRefused   uint64
	Pins                int
	Tables              int64 // of ordinary memory, for all tables
}

// NewTier makes the tables of an empty arena.
func NewTier(arena *Arena, o TierOptions) *Tier {
	granules := uint32(arena.Size() / Granule)
	names := newNames(o.Quota)
	return &Tier{
		arena: arena, table: newEntryIndex(granules, names), extents: newExtents(granules), names: names,
		pins: newPins(o.Pins), o: o,
		ghosts: newGhosts(), target: int64(targetStart * float64(granules)),
	}
}

// Arena is where the blocks lie.
func (t *Tier) Arena() *Arena { return t.arena }

// Names are the namespaces.
func (t *Tier) Names() *Names { return t.names }

// Hash is an argument of Find and Publish beside an address. It needs no lock.
func (t *Tier) Hash(a *block.Addr) uint64 { return t.table.hash(a) }

// At is the entry of a block. It is valid until the lock is released.
func (t *Tier) At(id ID) *Entry { return t.table.entries.at(uint32(id)) }

// Find is the block with an address, or 0.
func (t *Tier) Find(h uint64, a *block.Addr) ID {
	id := t.table.lookup(h, a)
	if id != 0 && t.At(id).body == 0 {
		return 0
	}
	return id
}

// Addr is the address of a block.
func (t *Tier) Addr(id ID) block.Addr { return t.table.addr(t.At(id)) }

// Parent is the digest of a block's parent, zero if it has none.
func (t *Tier) Parent(id ID) (d block.Digest) {
	if p := t.At(id).parent; p != 0 {
		d = t.At(p).Digest
	}
	return d
}

// Body is the piece with a block's bytes.
func (t *Tier) Body(id ID) Ext { return t.At(id).body }

// Payload, Key and Attr are parts of a block's memory. They are valid while its body is held.
func (t *Tier) Payload(id ID) []byte {
	e := t.At(id)
	return t.Memory(e.body)[:e.Length:e.Length]
}

// Key is the client's key of the block; nil: it has an address only.
func (t *Tier) Key(id ID) []byte {
	e := t.At(id)
	return part(t.Memory(e.body), MetaAt(int(e.Length)), int(e.keyLen))
}

// Attr is the client's attribute of the block.
func (t *Tier) Attr(id ID) []byte {
	e := t.At(id)
	return part(t.Memory(e.body), MetaAt(int(e.Length))+int(e.keyLen), int(e.attrLen))
}

// AppendAttr appends to the attribute of a block. AppendAttr returns false if the block's piece or
// block.MaxAttr has no room. Slices that Attr has returned stay as they are.
func (t *Tier) AppendAttr(id ID, more []byte) bool {
	e := t.At(id)
	had := int(e.attrLen)
	memory, at := t.Memory(e.body), MetaAt(int(e.Length))+int(e.keyLen)+had
	if had+len(more) > block.MaxAttr || at+len(more) > len(memory) {
		return false
	}
	copy(memory[at:], more)
	e.attrLen += uint16(len(more))
	return true
}

func part(p []byte, at, n int) []byte {
	if n == 0 {
		return nil
	}
	return p[at : at+n : at+n]
}

// Memory is all of a piece.
func (t *Tier) Memory(x Ext) []byte {
	e := t.extents.pieces.at(uint32(x))
	return t.arena.Slice(int64(e.place())*Granule, int(e.size)*Granule)
}

// Offset is where in the arena a piece begins, in bytes.
func (t *Tier) Offset(x Ext) int64 { return int64(t.extents.pieces.at(uint32(x)).place()) * Granule }

// Hold keeps a piece from being reused until Drop, even if its block is removed.
func (t *Tier) Hold(x Ext) {
	e := t.extents.pieces.at(uint32(x))
	if e.link++; e.link == 1 {
		t.held += e.size
	}
}

// Drop ends a Hold. The last Drop frees the memory of a removed block.
func (t *Tier) Drop(x Ext) {
	e := t.extents.pieces.at(uint32(x))
	if e.link--; e.link > 0 {
		return
	}
	t.held -= e.size
	if e.mark == 0 {
		t.free(x)
	} else {
		t.settle(ID(e.mark))
	}
}

func (t *Tier) free(x Ext) {
	poison(t.Memory(x))
	t.extents.give(uint32(x))
}

// Meta describes a block to Publish.
type Meta struct {
	Parent          block.Digest
	Expires         int64
	Length, CRC     uint32
	KeyLen, AttrLen uint16
}

// Publish makes the reserved piece x the body of an address, in place of an earlier body, whose
// readers go on undisturbed. The piece stays held until Drop. The block holds ns until it is
// removed.
func (t *Tier) Publish(h uint64, a *block.Addr, ns uint32, x Ext, m Meta) ID {
	id := t.table.lookup(h, a)
	replaced := id != 0 && t.At(id).body != 0
	var was uint32
	if replaced {
		was = t.extents.pieces.at(uint32(t.At(id).body)).size
		t.detach(id)
	} else if id == 0 {
		id = t.table.link(h, a, ns)
	}
	e, p := t.At(id), t.extents.pieces.at(uint32(x))
	if e.state |= fresh; !replaced {
		t.recall(h, e, p.size)
	}
	t.parts[e.part()].size += p.size
	e.body, e.Length, e.CRC, e.keyLen, e.attrLen, e.Expires = x, m.Length, m.CRC, m.KeyLen, m.AttrLen, m.Expires
	e.Mark, e.Uses, e.stamp = 0, 0, t.Stamp(1)
	p.mark = uint32(id)
	name := t.names.At(ns)
	name.Blocks++
	name.Bytes += int64(p.size) * Granule
	t.blocks++
	if e.pins > 0 {
		t.repin(id, was, p.size)
	}
	t.setParent(id, a, m.Parent)
	return id
}

// detach takes a block's body away.
func (t *Tier) detach(id ID) {
	e := t.At(id)
	x := e.body
	p := t.extents.pieces.at(uint32(x))
	t.count(e.NS(), p.size)
	t.parts[e.part()].size -= p.size
	t.blocks--
	if e.pins > 0 {
		t.pinned -= p.size
	}
	e.body, p.mark = 0, 0
	if p.link == 0 {
		t.free(x)
	}
}

// count subtracts size granules from the account of a namespace.
func (t *Tier) count(ns, size uint32) {
	name := t.names.At(ns)
	name.Blocks--
	name.Bytes -= int64(size) * Granule
	if name.Quota != nil {
		name.Quota.Used -= int64(size) * Granule
	}
}

// Remove removes a block and its pins from the table. Holders of its body can go on reading.
func (t *Tier) Remove(id ID) {
	e := t.At(id)
	size := t.extents.pieces.at(uint32(e.body)).size
	t.detach(id)
	if e.pins > 0 {
		t.pins.forget(id, size)
		e.pins = 0
	}
	t.leave(id)
	e.state &= inHeaps
	if e.Expires, e.Mark = 0, 0; e.kid == 0 {
		t.table.unlink(id)
	}
}

// setParent links a block to its parent, which may be absent.
func (t *Tier) setParent(id ID, a *block.Addr, parent block.Digest) {
	e, p := t.At(id), ID(0)
	if parent != (block.Digest{}) && parent != a.Digest {
		pa := block.Addr{Digest: parent, Model: a.Model, Layer: a.Layer}
		h := t.table.hash(&pa)
		if p = t.table.lookup(h, &pa); p == 0 {
			p = t.table.link(h, &pa, e.NS())
		} else if p != e.parent && e.kid != 0 && t.descends(p, id) {
			p = 0
			t.counts.Cycles++
		}
	}
	if p == e.parent {
		return
	}
	t.leave(id)
	if e.parent = p; p != 0 {
		q := t.At(p)
		if e.older = q.kid; q.kid != 0 {
			t.At(q.kid).younger = id
		}
		q.kid = id
	}
}

// leave unlinks a block from its parent, which may become a leaf.
func (t *Tier) leave(id ID) {
	e := t.At(id)
	if e.parent == 0 {
		return
	}
	parent := e.parent
	p := t.At(parent)
	if e.older != 0 {
		t.At(e.older).younger = e.younger
	}
	if e.younger != 0 {
		t.At(e.younger).older = e.older
	} else {
		p.kid = e.older
	}
	e.parent, e.older, e.younger = 0, 0, 0
	switch {
	case p.kid != 0:
	case p.body == 0:
		t.table.unlink(parent)
	default:
		t.settle(parent)
	}
}

// generations bounds how far descends looks, to some microseconds, as the lock is held.
const generations = 1 << 12

// descends tells whether id is ancestor or comes after it, or whether the answer takes too long.
// Digests of tokens form no cycle, but clients choose what they send, and blocks in a cycle could
// never be evicted.
func (t *Tier) descends(id, ancestor ID) bool {
	for range generations {
		if id == 0 || id == ancestor {
			return id != 0
		}
		id = t.At(id).parent
	}
	return true
}

// Usage is how the arena is used at the moment.
func (t *Tier) Usage() Usage {
	tables := bytesOf(&t.table.heads) + bytesOf(&t.table.entries) + bytesOf(&t.extents.pieces) +
		bytesOf(&t.parts[recent].items) + bytesOf(&t.parts[frequent].items) + bytesOf(&t.ghosts.heads) +
		bytesOf(&t.ghosts.names)
	return Usage{
		Counts: t.counts, Size: t.arena.Size(), Free: int64(t.extents.free) * Granule,
		Largest: int64(t.extents.largest()) * Granule,
		Held:    int64(t.held) * Granule, Pinned: int64(t.pinned) * Granule, Blocks: t.blocks,
		Names:      int(t.ghosts.count),
		Namespaces: len(t.names.byID), NamespacesRefused: t.names.refused, Pins: len(t.pins.ends), Tables: tables,
	}
}
