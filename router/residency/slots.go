package residency

import (
	"math/bits"
	"sync/atomic"
)

// slots is a hash map from words to words: buckets of four in a cache line, of which the one that
// follows from the key comes first, then its neighbours. A search ends at a bucket that has an
// empty slot. A slot that becomes free in a bucket without one is therefore dead, and not empty,
// until it is used again.
//
// Readers take no lock: they load the key of a slot, its value and the key again. Writers set the
// value before the key. Slots never move; a map that is full is replaced by a copy.
type slots struct {
	buckets []bucket
	used    int // slots that are not empty
	live    int // those of them that are not dead
}

const (
	bucketSlots = 8
	// fullPercent is the part of the slots that may be used.
	fullPercent = 70
	// maxSearch is how many buckets a search looks at. Of a map of millions in which 70 % are used
	// it takes less than 20.
	maxSearch  = 64
	minBuckets = 32
)

// Keys of slots that have none. Those of the index are greater.
const (
	empty = 0
	dead  = 1
)

// bucket is read and written by atomic operations.
type bucket struct {
	keys   [bucketSlots]uint64
	values [bucketSlots]uint64
}

const bucketBytes = 2 * 8 * bucketSlots

func newSlots(buckets int) *slots { return &slots{buckets: make([]bucket, max(buckets, minBuckets))} }

func (m *slots) full() bool { return m.used >= len(m.buckets)*bucketSlots*fullPercent/100 }

// copied is a map with the same live slots and room for more: half as much again, or as much if
// many are dead.
func (m *slots) copied() *slots {
	n := len(m.buckets)
	if m.live > m.used*2/3 {
		n += n / 2
	}
	c := newSlots(n)
	for i := range m.buckets {
		for k, key := range &m.buckets[i].keys {
			if key > dead {
				c.put(key, m.buckets[i].values[k])
			}
		}
	}
	return c
}

// home is the bucket where a search for key begins. Keys of a larger map are in the same order.
func (m *slots) home(key uint64) int {
	hi, _ := bits.Mul64((key^key>>29)*0x9e3779b97f4a7c15, uint64(len(m.buckets)))
	return int(hi)
}

func (m *slots) after(n int) int {
	if n++; n < len(m.buckets) {
		return n
	}
	return 0
}

// at is a bit for each slot of the bucket that has the key. It compares without branches,
// because which slot it is cannot be predicted.
func (b *bucket) at(key uint64) uint8 {
	return b.same(0, key) | b.same(1, key)<<1 | b.same(2, key)<<2 | b.same(3, key)<<3 |
		b.same(4, key)<<4 | b.same(5, key)<<5 | b.same(6, key)<<6 | b.same(7, key)<<7
}

// same is 1 if slot i has this key, else 0.
func (b *bucket) same(i int, key uint64) (same uint8) {
	if atomic.LoadUint64(&b.keys[i]) == key {
		same = 1
	}
	return same
}

func slotOf(found uint8) int { return bits.TrailingZeros8(found) & (bucketSlots - 1) }

// touch loads what the searches for the groups of some blocks read first, of all at the same time.
func (m *slots) touch(keys []Key) {
	leader := uint64(empty)
	for _, key := range keys {
		if key.leader() == leader {
			continue
		}
		leader = key.leader()
		b := &m.buckets[m.home(leader)]
		atomic.LoadUint64(&b.keys[0])
		atomic.LoadUint64(&b.values[0])
	}
}

// get is the value of key; 0 if there is none. For readers.
func (m *slots) get(key uint64) uint64 {
	n := m.home(key)
	for range maxSearch {
		b := &m.buckets[n]
		if found := b.at(key); found != 0 {
			i := slotOf(found)
			value := atomic.LoadUint64(&b.values[i])
			if atomic.LoadUint64(&b.keys[i]) != key {
				return 0
			}
			return value
		}
		if b.at(empty) != 0 {
			return 0
		}
		n = m.after(n)
	}
	return 0
}

// find is the slot of key; nil if there is none. For writers.
func (m *slots) find(key uint64) (b *bucket, i int) {
	n := m.home(key)
	for range maxSearch {
		b := &m.buckets[n]
		if found := b.at(key); found != 0 {
			return b, slotOf(found)
		}
		if b.at(empty) != 0 {
			break
		}
		n = m.after(n)
	}
	return nil, 0
}

// put adds a key that is not there; false if there is no slot for it.
func (m *slots) put(key, value uint64) bool {
	n := m.home(key)
	for range maxSearch {
		b := &m.buckets[n]
		free := b.at(empty)
		if free == 0 {
			free = b.at(dead)
		} else {
			m.used++
		}
		if free != 0 {
			atomic.StoreUint64(&b.values[slotOf(free)], value)
			atomic.StoreUint64(&b.keys[slotOf(free)], key)
			m.live++
			return true
		}
		n = m.after(n)
	}
	return false
}

// remove empties a slot.
func (m *slots) remove(b *bucket, i int) {
	m.live--
	if b.at(empty) == 0 {
		atomic.StoreUint64(&b.keys[i], dead)
		return
	}
	atomic.StoreUint64(&b.keys[i], empty)
	m.used--
}
