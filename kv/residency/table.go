package residency

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/cognitora/dataplane/kv/block"
)

// entry is a block of a holder or, in the ring, a change of one. entry has no pointers and no
// padding.
type entry struct {
	name Name
	// first 8 bytes of the leader's digest; for a waiting block: the slots before and after it in
	// the list
	leader    uint64
	parent    uint64 // first 8 bytes of the parent's digest; 0: none
	next      uint32 // next slot of the bucket; in the ring: the holder
	layer     uint32
	position  uint32 // 1 + the block's number in its chain; 0: unknown
	namespace uint16
	tiers     Tiers
	flags     uint8
}

// These are the bits of an entry's flags. The other bits are the number of the block's adapter in
// its holder. In the daemon's tiers, which have no adapters, they are the tiers of an object
// (objects.go).
const (
	waits        = 1 // the block waits for its parent
	adapterShift = 1
	maxAdapters  = 1<<(8-adapterShift) - 1
)

func (e *entry) waits() bool { return e.flags&waits != 0 }

func (e *entry) adapter() uint8 { return e.flags >> adapterShift }

func (e *entry) setAdapter(n uint8) { e.flags = e.flags&waits | n<<adapterShift }

// prefix returns the first 8 bytes of a digest.
func prefix(d *block.Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

func (e *entry) own() uint64 { return binary.LittleEndian.Uint64(e.name[:]) }

// Slots and buckets are allocated in pieces, so that growing copies nothing.
const (
	slabSize  = 1024
	entrySize = int64(unsafe.Sizeof(entry{}))
)

// heldBlocks holds the blocks of a holder in slots. A slot stays in place until its block is
// removed. A linear hash table of chains runs through the slots and grows by one bucket per block.
// heldBlocks never shrinks.
type heldBlocks struct {
	seeds   [2]uint64
	slabs   []*[slabSize]entry
	used    uint32 // slots used so far; slot 0 is unused
	free    uint32 // the first free slot
	count   int
	heads   []*[slabSize]uint32
	buckets uint32
	size    uint32 // the largest power of two not above buckets
}

func newHeldBlocks(seeds [2]uint64) heldBlocks { return heldBlocks{seeds: seeds} }

func (t *heldBlocks) bytes() int64 {
	return int64(len(t.slabs))*slabSize*entrySize + int64(len(t.heads))*slabSize*4
}

func (t *heldBlocks) at(slot uint32) *entry { return &t.slabs[slot/slabSize][slot%slabSize] }

func (t *heldBlocks) head(bucket uint32) *uint32 { return &t.heads[bucket/slabSize][bucket%slabSize] }

// hash uses only the first 8 bytes of a digest, because no other bytes of a parent's digest are
// known. A client that chooses digests does not know the seeds.
func (t *heldBlocks) hash(own uint64, namespace uint16, layer uint32) uint32 {
	hi, lo := bits.Mul64(own^t.seeds[0], (uint64(layer)<<16|uint64(namespace))^t.seeds[1]|1)
	return uint32((hi ^ lo) >> 16)
}

func (t *heldBlocks) bucket(hash uint32) uint32 {
	if b := hash & (2*t.size - 1); b < t.buckets {
		return b
	}
	return hash & (t.size - 1)
}

// find returns the slot of the block whose digest begins with own, or 0 if there is none.
func (t *heldBlocks) find(own uint64, namespace uint16, layer uint32) uint32 {
	if t.count == 0 {
		return 0
	}
	slot := *t.head(t.bucket(t.hash(own, namespace, layer)))
	for slot != 0 {
		e := t.at(slot)
		if e.own() == own && e.layer == layer && e.namespace == namespace {
			break
		}
		slot = e.next
	}
	return slot
}

// insert makes a slot for a new block.
func (t *heldBlocks) insert(own uint64, namespace uint16, layer uint32) uint32 {
	t.grow()
	slot := t.free
	if slot != 0 {
		t.free = t.at(slot).next
	} else {
		t.used++
		if slot = t.used; slot/slabSize == uint32(len(t.slabs)) {
			t.slabs = append(t.slabs, new([slabSize]entry))
		}
	}
	head := t.head(t.bucket(t.hash(own, namespace, layer)))
	e := t.at(slot)
	*e = entry{layer: layer, namespace: namespace, next: *head}
	binary.LittleEndian.PutUint64(e.name[:], own)
	*head = slot
	t.count++
	return slot
}

// remove frees a slot.
func (t *heldBlocks) remove(slot uint32) {
	e := t.at(slot)
	at := t.head(t.bucket(t.hash(e.own(), e.namespace, e.layer)))
	for *at != slot {
		at = &t.at(*at).next
	}
	*at = e.next
	*e = entry{next: t.free}
	t.free = slot
	t.count--
}

// grow adds a bucket if there are as many blocks as buckets. grow moves the bucket's blocks into
// it.
func (t *heldBlocks) grow() {
	if t.count < int(t.buckets) {
		return
	}
	if t.buckets%slabSize == 0 {
		t.heads = append(t.heads, new([slabSize]uint32))
	}
	if t.buckets == 0 {
		t.slabs = append(t.slabs, new([slabSize]entry))
		t.buckets, t.size = 1, 1
		return
	}
	fresh := t.buckets
	t.buckets++
	from, to := t.head(fresh-t.size), t.head(fresh)
	if t.buckets == 2*t.size {
		t.size *= 2
	}
	for *from != 0 {
		e := t.at(*from)
		if t.bucket(t.hash(e.own(), e.namespace, e.layer)) != fresh {
			from = &e.next
			continue
		}
		slot := *from
		*from, e.next, *to = e.next, *to, slot
	}
}
