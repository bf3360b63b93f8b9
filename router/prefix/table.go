package prefix

import (
	"math/bits"
	"sync/atomic"
)

// The table is set-associative. An entry is the belief about one node and one group of blocks. An
// entry lies in one of the eight places of its bucket. A bucket has a cache line of keys, one of
// beliefs and one of tags. A bucket that overflows replaces its least recently touched entry.
//
// Readers take no lock. Readers load an entry's key, its contents and its key again. Writers hold
// Index.mu.
const (
	entriesPerBucket = 8
	// expectedBlocks is the least average number of blocks in an entry, which has room for
	// groupBlocks. Short prompts and unfinished groups have fewer.
	expectedBlocks = 8
	// load is the percentage of entries in use when the table is full of average entries. At 60 %
	// few buckets overflow.
	load = 60
)

type bucket struct {
	keys    [entriesPerBucket]atomic.Uint64 // 0 = empty
	beliefs [entriesPerBucket]atomic.Uint64
	tags    [entriesPerBucket]atomic.Uint64
}

type beliefTable struct {
	buckets []bucket
	max     int          // number of blocks from which on inserts replace an entry of their bucket
	blocks  atomic.Int64 // blocks in all entries
	sieve   sieve
}

// newBeliefTable makes room for max blocks. The table's memory becomes resident only as buckets are
// written.
func newBeliefTable(max int) *beliefTable {
	n := max/expectedBlocks*100/load/entriesPerBucket + 1
	t := &beliefTable{buckets: make([]bucket, n), max: max}
	t.sieve.init(n)
	return t
}

// placeBits is the number of bits in an entry's key for the node.
const placeBits = 16

// entryKey returns the key of an entry: 48 bits of the leader's digest and the node's place. The
// key is never 0. The bucket depends on the leader's other 16 bits as well.
func entryKey(leader uint64, place uint32) uint64 {
	key := leader<<placeBits | uint64(place)
	if key == 0 {
		return 1 << placeBits
	}
	return key
}

func placeOf(key uint64) uint32 { return uint32(key) & (1<<placeBits - 1) }

func (t *beliefTable) bucket(leader uint64, place uint32) *bucket {
	spread := (leader ^ uint64(place)*0xd6e8feb86659fd93) * 0x9e3779b97f4a7c15
	hi, _ := bits.Mul64(spread, uint64(len(t.buckets)))
	return &t.buckets[hi]
}

// fetch loads a bucket into the cache. Fetching several buckets before looking at them takes little
// longer than waiting for one bucket.
func (t *beliefTable) fetch(leader uint64, place uint32) *bucket {
	b := t.bucket(leader, place)
	b.keys[0].Load()
	b.beliefs[0].Load()
	b.tags[0].Load()
	return b
}

// at returns the place of key in the bucket, or -1. at compares without branches, because the place
// is unpredictable.
func (b *bucket) at(key uint64) int {
	found := b.same(0, key) | b.same(1, key)<<1 | b.same(2, key)<<2 | b.same(3, key)<<3 |
		b.same(4, key)<<4 | b.same(5, key)<<5 | b.same(6, key)<<6 | b.same(7, key)<<7
	if found == 0 {
		return -1
	}
	return bits.TrailingZeros8(found)
}

// same returns 1 if place i has this key, else 0.
func (b *bucket) same(i int, key uint64) (same uint8) {
	if b.keys[i].Load() == key {
		same = 1
	}
	return same
}

// touched returns when the entry in place i was last touched.
func (b *bucket) touched(i int) stamp { return belief(b.beliefs[i].Load()).touched() }

// old returns, as bits, the places of entries that were last touched least ms before now, or
// earlier. old reads only the beliefs and has no branches. A sweep calls old for the whole table,
// whose places are mostly empty or young.
func (b *bucket) old(now stamp, least int32) (old uint8) {
	for i := range b.beliefs {
		v := belief(b.beliefs[i].Load())
		tooYoung := uint32(since(now, v.touched())-least) >> 31
		old |= uint8((^tooYoung & uint32((v|-v)>>63))) & 1 << i
	}
	return old
}

// blocks returns the number of blocks of the entry in place i.
func (b *bucket) blocks(i int) int { return tags(b.tags[i].Load()).blocks() }

// load returns the belief about a node and a group for a reader. The belief is 0 if no entry
// exists.
func (t *beliefTable) load(leader uint64, place uint32) (belief, tags) {
	b, key := t.bucket(leader, place), entryKey(leader, place)
	i := b.at(key)
	if i < 0 {
		return 0, 0
	}
	v, blocks := belief(b.beliefs[i].Load()), tags(b.tags[i].Load())
	if b.keys[i].Load() != key {
		return 0, 0
	}
	return v, blocks
}

// insert adds a new entry to its bucket: into an empty place, or into the place of the least
// recently touched entry.
func (t *beliefTable) insert(b *bucket, key uint64, v belief, blocks tags) {
	i := b.at(0)
	if i < 0 || t.full() {
		i = t.evict(b, v.touched(), i)
	}
	b.beliefs[i].Store(uint64(v))
	b.tags[i].Store(uint64(blocks))
	b.keys[i].Store(key)
	t.sieve.add(key)
	t.blocks.Add(int64(blocks.blocks()))
}

// resize changes the blocks of the entry in place i.
func (t *beliefTable) resize(b *bucket, i int, from, to tags) {
	b.tags[i].Store(uint64(to))
	t.blocks.Add(int64(to.blocks() - from.blocks()))
}

// evict empties the least recently touched place and returns it. In a bucket without any entry it
// returns empty.
func (t *beliefTable) evict(b *bucket, now stamp, empty int) int {
	victim, oldest := empty, int32(-stampRange)
	for i := range b.keys {
		if b.keys[i].Load() == 0 {
			continue
		}
		if age := since(now, b.touched(i)); age > oldest {
			victim, oldest = i, age
		}
	}
	t.clear(b, victim)
	return victim
}

// clear empties a place. clear clears the key first, so that a reader that loaded a belief in
// between notices that the key has changed.
func (t *beliefTable) clear(b *bucket, i int) {
	if b.keys[i].Load() == 0 {
		return
	}
	t.blocks.Add(-int64(b.blocks(i)))
	b.keys[i].Store(0)
	b.beliefs[i].Store(0)
	b.tags[i].Store(0)
}

func (t *beliefTable) full() bool { return int(t.blocks.Load()) >= t.max }
