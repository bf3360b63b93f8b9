package residency

import (
	"math/bits"
	"sync/atomic"
)

// slots is a hash map from words to words. A bucket is a cache line of four slots. A search begins
// at the key's own bucket and continues with the next ones. A search ends at a bucket with an empty
// slot. A removed slot in a full bucket therefore becomes dead, not empty, until it is used again.
//
// Readers take no lock. Readers load the key of a slot, its value and the key again. Writers set
// the value before the key. Slots never move. A full map is replaced by a copy.
type slots struct {
	buckets []bucket
	used    int // slots that are not empty
	live    int // used slots that are not dead
}

const (
	bucketSlots = 8
	// fullPercent is the share of the slots that may be used.
	fullPercent = 70
	// maxSearch bounds the buckets of a search. A map of millions with 70 % in use needs less than
	// 20.
	maxSearch  = 64
	minBuckets = 32
)

// These are the keys of unused slots. Keys of the index are greater.
const (
	empty = 0
	dead  = 1
)

// bucket is accessed only by atomic operations.
type bucket struct {
	keys   [bucketSlots]uint64
	values [bucketSlots]uint64
}

const bucketBytes = 2 * 8 * bucketSlots

func newSlots(buckets int) *slots { return &slots{buckets: make([]bucket, max(buckets, minBuckets))} }

func (m *slots) full() bool { return m.used >= len(m.buckets)*bucketSlots*fullPercent/100 }

// copied returns a map with the same live slots. The new map has half as much room again, or the
// same room if many slots are dead.
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

// home returns the bucket where a search for key begins. A larger map has the keys in the same
// order.
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

// at returns a bit for each slot of the bucket with the key. at compares without branches, because
// the slot is unpredictable.
func (b *bucket) at(key uint64) uint8 {
	return b.same(0, key) | b.same(1, key)<<1 | b.same(2, key)<<2 | b.same(3, key)<<3 |
		b.same(4, key)<<4 | b.same(5, key)<<5 | b.same(6, key)<<6 | b.same(7, key)<<7
}

// same returns 1 if slot i has this key, else 0.
func (b *bucket) same(i int, key uint64) (same uint8) {
	if atomic.LoadUint64(&b.keys[i]) == key {
		same = 1
	}
	return same
}

func slotOf(found uint8) int { return bits.TrailingZeros8(found) & (bucketSlots - 1) }

// touch loads the first buckets of several searches at once, so that their cache misses overlap.
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

// get returns the value of key for a reader, or 0 if there is none.
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

// find returns the slot of key for a writer, or nil if there is none.
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

// put adds a new key. put returns false without a free slot for the key.
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
