package prefix

import (
	"math/bits"
	"sync/atomic"
)

// The table is set-associative: a key belongs to one bucket of 16 slots and a
// slot holds the beliefs about one block for up to three nodes of one page of
// eight; a block with more holders has further slots with the same key, at most
// three per page, so that blocks that every node holds spread over the table. A
// lookup reads two adjacent cache lines of keys and, for a hit, one of beliefs.
//
// Readers take no lock: they load a slot's key, its beliefs and its key again.
// Writers hold Index.mu.
const (
	slotsPerBucket = 16
	holdersPerSlot = 3
	lanesPerPage   = 8
	pageBits       = 13
	pageMask       = 1<<pageBits - 1
)

type bucket struct {
	keys    [slotsPerBucket]atomic.Uint64 // 0 = empty
	holders [slotsPerBucket][holdersPerSlot]atomic.Uint64
}

type table struct {
	buckets []bucket
	max     int          // slots in use from which on inserts replace where they can
	used    atomic.Int64 // slots in use
}

// newTable makes room for max slots at a load of 0.8. Its memory becomes
// resident only as buckets are written.
func newTable(max int) *table {
	n := (max*5/4 + slotsPerBucket - 1) / slotsPerBucket
	return &table{buckets: make([]bucket, n), max: max}
}

// pageKey is the key of a block for the nodes of one page: 51 bits of its
// digest, and the page. It is never 0.
func pageKey(block uint64, page uint32) uint64 {
	block &^= pageMask
	if block == 0 {
		block = 1 << pageBits
	}
	return block | uint64(page)
}

func (t *table) bucket(key uint64) *bucket {
	hi, _ := bits.Mul64(key*0x9e3779b97f4a7c15, uint64(len(t.buckets)))
	return &t.buckets[hi]
}

// lanes loads what is believed about key for each lane of its page; 0 = nothing.
func (t *table) lanes(key uint64, out *[lanesPerPage]belief) {
	*out = [lanesPerPage]belief{}
	b := t.bucket(key)
	for s := range b.keys {
		if b.keys[s].Load() != key {
			continue
		}
		var w [holdersPerSlot]belief
		for i := range w {
			w[i] = belief(b.holders[s][i].Load())
		}
		if b.keys[s].Load() != key {
			continue
		}
		for _, v := range w {
			if v != 0 {
				out[v.lane()] = v
			}
		}
	}
}

// find is the cell of the belief that lane holds key, or nil. For writers.
func (t *table) find(key, lane uint64) *atomic.Uint64 {
	b := t.bucket(key)
	for s := range b.keys {
		if b.keys[s].Load() != key {
			continue
		}
		for i := range b.holders[s] {
			w := belief(b.holders[s][i].Load())
			if w != 0 && w.lane() == lane {
				return &b.holders[s][i]
			}
		}
	}
	return nil
}

// insert adds a belief about a lane that has none for key: into a slot that the
// block already has, into an empty slot, or into that of the bucket's least
// recently touched block.
func (t *table) insert(key uint64, v belief) {
	b := t.bucket(key)
	empty := -1
	for s := range b.keys {
		switch b.keys[s].Load() {
		case key:
			if i := b.freeHolder(s); i >= 0 {
				b.holders[s][i].Store(uint64(v))
				return
			}
		case 0:
			empty = s
		}
	}
	if empty < 0 || t.full() {
		empty = t.evict(b, v.touched(), empty)
	}
	b.holders[empty][0].Store(uint64(v))
	b.keys[empty].Store(key)
	t.used.Add(1)
}

func (b *bucket) freeHolder(slot int) int {
	for i := range b.holders[slot] {
		if b.holders[slot][i].Load() == 0 {
			return i
		}
	}
	return -1
}

// evict empties the least recently touched slot and returns it; in a bucket
// without any it returns empty.
func (t *table) evict(b *bucket, now stamp, empty int) int {
	victim, oldest := empty, int32(-stampRange)
	for s := range b.keys {
		if b.keys[s].Load() == 0 {
			continue
		}
		if age := since(now, b.touched(s)); age > oldest {
			victim, oldest = s, age
		}
	}
	t.clear(b, victim)
	return victim
}

// touched is when a slot in use was last touched on any node.
func (b *bucket) touched(slot int) stamp {
	var latest stamp
	found := false
	for i := range b.holders[slot] {
		w := belief(b.holders[slot][i].Load())
		if w == 0 {
			continue
		}
		if !found || since(w.touched(), latest) > 0 {
			latest, found = w.touched(), true
		}
	}
	return latest
}

// clear empties a slot. The key goes first: a reader that loaded beliefs in
// between sees that they may not be this key's.
func (t *table) clear(b *bucket, slot int) {
	if b.keys[slot].Load() == 0 {
		return
	}
	b.keys[slot].Store(0)
	for i := range b.holders[slot] {
		b.holders[slot][i].Store(0)
	}
	t.used.Add(-1)
}

// remove drops the belief that lane holds key.
func (t *table) remove(key, lane uint64) {
	b := t.bucket(key)
	for s := range b.keys {
		if b.keys[s].Load() == key && b.drop(s, lane) {
			t.clearIfBare(b, s)
			return
		}
	}
}

func (b *bucket) drop(slot int, lane uint64) bool {
	for i := range b.holders[slot] {
		w := belief(b.holders[slot][i].Load())
		if w != 0 && w.lane() == lane {
			b.holders[slot][i].Store(0)
			return true
		}
	}
	return false
}

func (t *table) full() bool { return int(t.used.Load()) >= t.max }

// clearIfBare empties a slot that holds no belief any more.
func (t *table) clearIfBare(b *bucket, slot int) {
	for i := range b.holders[slot] {
		if b.holders[slot][i].Load() != 0 {
			return
		}
	}
	t.clear(b, slot)
}
