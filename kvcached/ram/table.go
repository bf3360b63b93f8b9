package ram

import (
	"hash/maphash"
	"math/bits"
	"unsafe"

	"github.com/cognitora/dataplane/kv/block"
)

// ID names an entry of the table until the entry is removed. Zero is none.
type ID uint32

// Entry is one address. Without a body in the arena it stands for a parent of blocks with bodies.
type Entry struct {
	Digest  block.Digest
	Expires int64  // Unix ms; 0: never
	stamp   uint64 // of the last use; larger is later
	Layer   uint32
	parent  ID // 0: none is known
	kid     ID // the first child
	older   ID // siblings; older comes after this entry in the list of kid
	younger ID
	next    ID // in the chain of its bucket, or of unused entries
	body    Ext
	Length  uint32 // of the payload, bytes
	CRC     uint32
	ns      uint16 // number of the namespace
	Uses    uint16 // at least so many
	keyLen  uint16
	attrLen uint16
	pins    uint16
	state   uint8
	Mark    uint8
}

// NS is the number of the namespace.
func (e *Entry) NS() uint32 { return uint32(e.ns) }

// entryIndex finds entries by address.
//
// It is a hash table of chains with a seeded hash, because keys come from outside. It compares
// whole addresses. An entry stays in the same part of a scan.
type entryIndex struct {
	chains[ID]
	entries chunked[Entry]
	spare   ID
	parts   uint32 // a power of two
	count   uint32 // of entries in use
	seed    maphash.Seed
	names   *Names
}

// granulesPerPart makes a part of a scan at most 512 blocks on average.
const granulesPerPart = 512

func newEntryIndex(granules uint32, names *Names) *entryIndex {
	parts := uint32(1) << bits.Len32(granules/granulesPerPart)
	t := &entryIndex{chains: newChains[ID](parts), parts: parts, seed: maphash.MakeSeed(), names: names}
	t.entries.grow() // 0 is none
	return t
}

// split makes one more chain and moves its elements there.
func (t *entryIndex) split() {
	for ids := t.begin(); ids != 0; {
		id := ids
		e := t.entries.at(uint32(id))
		ids = e.next
		a := t.addr(e)
		head := t.head(t.hash(&a))
		e.next, *head = *head, id
	}
}

// hash needs no lock.
func (t *entryIndex) hash(a *block.Addr) uint64 {
	return maphash.Bytes(t.seed, unsafe.Slice((*byte)(unsafe.Pointer(a)), unsafe.Sizeof(*a)))
}

// lookup finds the entry of an address, with a body or not.
func (t *entryIndex) lookup(h uint64, a *block.Addr) ID {
	for id := *t.head(h); id != 0; {
		e := t.entries.at(uint32(id))
		if e.Digest == a.Digest && e.Layer == a.Layer && t.names.names[e.ns].ID == a.Model {
			return id
		}
		id = e.next
	}
	return 0
}

// link adds an entry for an address that has none.
func (t *entryIndex) link(h uint64, a *block.Addr, ns uint32) ID {
	id := t.spare
	if id != 0 {
		t.spare = t.entries.at(uint32(id)).next
	} else {
		id = ID(t.entries.grow())
	}
	if t.count++; t.count > t.heads.n {
		t.split()
	}
	e := t.entries.at(uint32(id))
	head := t.head(h)
	*e = Entry{Digest: a.Digest, Layer: a.Layer, ns: uint16(ns), next: *head, state: e.state & inHeaps}
	t.names.names[ns].holds++
	*head = id
	return id
}

// unlink removes an entry. The next user of its number inherits its places in heaps.
func (t *entryIndex) unlink(id ID) {
	e := t.entries.at(uint32(id))
	a := t.addr(e)
	at := t.head(t.hash(&a))
	for *at != id {
		at = &t.entries.at(uint32(*at)).next
	}
	*at = e.next
	ns := e.NS()
	*e = Entry{next: t.spare, state: e.state & inHeaps}
	t.count--
	t.spare = id
	t.names.Drop(ns)
}

func (t *entryIndex) addr(e *Entry) block.Addr {
	return block.Addr{Digest: e.Digest, Layer: e.Layer, Model: t.names.names[e.ns].ID}
}

// ScanParts is how many calls of Scan see the whole table.
func (t *Tier) ScanParts() uint64 { return uint64(t.table.parts) }

// Scan calls visit with every block of part i. A block stays in its part for as long as the Tier
// lives.
func (t *Tier) Scan(i uint64, visit func(ID)) {
	for at := uint32(i); at < t.table.heads.n; at += t.table.parts {
		for id := *t.table.heads.at(at); id != 0; {
			e := t.At(id)
			next := e.next
			if e.body != 0 {
				visit(id)
			}
			id = next
		}
	}
}

// Slots is one more than the largest ID so far.
func (t *Tier) Slots() uint32 { return t.table.entries.n }

// Block returns the ID i if it is a block's.
func (t *Tier) Block(i uint32) ID {
	if i == 0 || t.table.entries.at(i).body == 0 {
		return 0
	}
	return ID(i)
}
