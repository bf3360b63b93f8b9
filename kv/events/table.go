package events

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// media is the number of tiers in which an engine can have blocks: those of residency without
// Pinned.
const media = 4

// engineBlocks maps the engine's hashes to digests, for the engine's blocks of one group. A slot
// stays in place until its block is removed.
type engineBlocks struct {
	slots   map[hash]uint32
	blocks  []engineBlock  // by slot; slot 0 is unused
	digests []block.Digest // of each slot: the parent of the block's first digest, then the block's digests
	tails   map[uint32]tail
	free    []uint32         // free slots
	room    map[int][]uint32 // free places in digests, by the number of adjacent places
	// owners counts how many blocks of each tier contain a digest, by the digest's first 8 bytes.
	// Blocks that differ within a digest block of 16 tokens share the digests before it. owners is
	// nil while all blocks have 16 tokens, because then each digest is in one block only.
	owners map[uint64]*[media]uint32
}

// engineBlock is a block of the engine.
type engineBlock struct {
	at    uint32 // index in digests
	count uint16 // number of digests that end in the block
	label uint16 // number of the block's adapter
	root  bool   // the block's first digest is the first of a prompt; the parent is the seed
	tiers residency.Tiers
	held  [media]uint16 // stores minus removals in each tier; an engine may compute a block twice
}

// tail is the end of a chain: the last digest, and the tokens behind it at the end of a block whose
// size is no multiple of 16.
type tail struct {
	last   block.Digest
	tokens [block.Tokens]uint32
	n      int
	root   bool // last is the seed
}

func newEngineBlocks() *engineBlocks {
	return &engineBlocks{slots: map[hash]uint32{}, blocks: make([]engineBlock, 1), tails: map[uint32]tail{},
		room: map[int][]uint32{}}
}

// digestsOf returns the digests that end in the block of a slot.
func (t *engineBlocks) digestsOf(slot uint32) []block.Digest {
	b := &t.blocks[slot]
	return t.digests[b.at+1:][:b.count]
}

func (t *engineBlocks) parentOf(slot uint32) *block.Digest { return &t.digests[t.blocks[slot].at] }

// end returns the end of the chain at the block of a slot.
func (t *engineBlocks) end(slot uint32) tail {
	if left, ok := t.tails[slot]; ok {
		return left
	}
	b := &t.blocks[slot]
	return tail{last: t.digests[b.at+uint32(b.count)]}
}

// add makes a slot for a block, with room for its digests.
func (t *engineBlocks) add(h hash, digests int) uint32 {
	var slot uint32
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
	} else {
		slot = uint32(len(t.blocks))
		t.blocks = append(t.blocks, engineBlock{})
	}
	b := &t.blocks[slot]
	*b = engineBlock{count: uint16(digests)}
	if places := t.room[digests]; len(places) > 0 {
		b.at, t.room[digests] = places[len(places)-1], places[:len(places)-1]
	} else {
		b.at = uint32(len(t.digests))
		for range digests + 1 {
			t.digests = append(t.digests, block.Digest{})
		}
	}
	t.slots[h] = slot
	return slot
}

// widen begins to count owners, because a block has more or fewer than 16 tokens.
func (t *engineBlocks) widen() {
	if t.owners != nil {
		return
	}
	t.owners = map[uint64]*[media]uint32{}
	for slot := range t.blocks {
		for index := range media {
			if t.blocks[slot].held[index] > 0 {
				t.own(uint32(slot), index)
			}
		}
	}
}

func nameOf(d *block.Digest) uint64 { return binary.LittleEndian.Uint64(d[:]) }

// own notes that a tier has the block of a slot.
func (t *engineBlocks) own(slot uint32, index int) {
	if t.owners == nil {
		return
	}
	digests := t.digestsOf(slot)
	for i := range digests {
		name := nameOf(&digests[i])
		o := t.owners[name]
		if o == nil {
			o = new([media]uint32)
			t.owners[name] = o
		}
		o[index]++
	}
}

// disown notes that a tier no longer has the block of a slot. It passes each digest that no other
// block of the tier contains to gone.
func (t *engineBlocks) disown(slot uint32, index int, gone func([]block.Digest)) {
	digests := t.digestsOf(slot)
	if t.owners == nil {
		gone(digests)
		return
	}
	for i := range digests {
		name := nameOf(&digests[i])
		o := t.owners[name]
		if o[index]--; o[index] > 0 {
			continue
		}
		if *o == [media]uint32{} {
			delete(t.owners, name)
		}
		gone(digests[i : i+1])
	}
}

// remove frees the slot of a block.
func (t *engineBlocks) remove(h hash, slot uint32) {
	b := &t.blocks[slot]
	t.room[int(b.count)] = append(t.room[int(b.count)], b.at)
	*b = engineBlock{}
	delete(t.tails, slot)
	delete(t.slots, h)
	t.free = append(t.free, slot)
}
