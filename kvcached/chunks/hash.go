package chunks

import (
	"slices"
	"unsafe"

	"github.com/cognitora/dataplane/kv/residency"
)

// slot is an entry of a hashTable, a part or a named. 0 is none.
type slot interface{ ~uint32 | ~uint64 }

// behind returns how many slots the entry at a slot is behind the one where it belongs. Entries of
// 32 bits say it, those of 64 bits have the hash.
func behind[S slot](s S, at, size int) int {
	if unsafe.Sizeof(s) == 4 {
		return int(s >> numberBits)
	}
	if at -= home(uint32(uint64(s)>>partHash), size); at < 0 {
		at += size
	}
	return at
}

// moved returns an entry as it stands some slots further behind.
func moved[S slot](s S, by int) S {
	if unsafe.Sizeof(s) == 4 {
		s += S(by << numberBits)
	}
	return s
}

// hashTable is a hash table with open addressing, in shards. Entries that belong at an earlier slot
// come first (Robin Hood hashing), so a shard that is nearly full is still fast, and an entry goes
// without a trace. A shard grows when fifteen of sixteen slots are taken, and never shrinks.
type hashTable[S slot] struct {
	hash   func(s S) uint32 // of an entry: that of its key, without the bits of the shard
	step   int              // a shard grows by 1/step
	shards []shard[S]       // 1<<shardBits; nil: there has been no entry
	n      int
}

type shard[S slot] struct {
	slots []S
	n     int
}

const shardBits = 8

// entry is where an entry is.
type entry[S slot] struct {
	*shard[S]
	at int
}

func (e entry[S]) get() S  { return e.slots[e.at] }
func (e entry[S]) set(s S) { e.slots[e.at] = s }

// home returns the slot where an entry belongs.
func home(hash uint32, size int) int { return int(uint64(hash) * uint64(size) >> 32) }

// split splits the hash of a key.
func split(key uint64) (shard int, hash uint32) {
	return int(key >> (64 - shardBits)), uint32(key << shardBits >> 32)
}

// put adds an entry that is not there.
func (x *hashTable[S]) put(key uint64, s S) {
	if x.shards == nil {
		x.shards = make([]shard[S], 1<<shardBits)
	}
	number, hash := split(key)
	h := &x.shards[number]
	if 16*(h.n+1) > 15*len(h.slots) {
		x.grow(h)
	}
	h.put(hash, s)
	h.n++
	x.n++
}

// cut removes an entry.
func (x *hashTable[S]) cut(e entry[S]) {
	for {
		next := e.after(e.at)
		s := e.slots[next]
		if s == 0 || behind(s, next, len(e.slots)) == 0 {
			break
		}
		e.slots[e.at] = moved(s, -1)
		e.at = next
	}
	e.slots[e.at] = 0
	e.n--
	x.n--
}

func (x *hashTable[S]) grow(h *shard[S]) {
	was := h.slots
	h.slots = slices.Grow([]S(nil), len(was)+max(4, len(was)/x.step))
	h.slots = h.slots[:cap(h.slots)]
	for i, s := range was {
		if s != 0 {
			h.put(x.hash(s), moved(s, -behind(s, i, len(was))))
		}
	}
}

// put puts an entry behind those that belong at its slot or at an earlier one.
func (h *shard[S]) put(hash uint32, s S) {
	i, far := home(hash, len(h.slots)), 0
	for h.slots[i] != 0 && behind(h.slots[i], i, len(h.slots)) >= far {
		i, far = h.after(i), far+1
	}
	for s = moved(s, far); s != 0; i = h.after(i) {
		if s, h.slots[i] = h.slots[i], s; s != 0 {
			s = moved(s, 1)
		}
	}
}

func (h *shard[S]) after(i int) int {
	if i++; i < len(h.slots) {
		return i
	}
	return 0
}

// ref refers to a chunk: its number, 22 bits, and before that the first 8 bits of its id, which the
// chunk itself does not have.
type ref uint32

const (
	numberBits = 22
	refBits    = numberBits + shardBits
)

func refOf(id uint64, number uint32) ref { return ref(id>>(64-shardBits))<<numberBits | ref(number) }

func (r ref) number() uint32 { return uint32(r) & (1<<numberBits - 1) }

// part is an entry of the table of parts: 32 bits of the hash of an object's address, a reference
// to its chunk, and its tiers. With the bits of the shard that is 40 bits of the hash. Of a million
// parts about one has the same as an earlier one, and does not count. A removal of an object that
// is no part takes away a part with a chance of one to a million. So a chunk may count for less
// than it should, and never for more.
type part uint64

const (
	partTiers = 2 // bits
	partHash  = refBits + partTiers
	tierShift = 1 // of residency.Host
)

func partOf(key uint64, r ref) part {
	_, hash := split(key)
	return part(hash)<<partHash | part(r)<<partTiers
}

func (p part) chunk() ref { return ref(p >> partTiers & (1<<refBits - 1)) }

func (p part) tiers() residency.Tiers { return residency.Tiers(p) << tierShift & anyTier }

func (p part) with(tiers residency.Tiers) part {
	return p&^(1<<partTiers-1) | part(tiers>>tierShift)
}

// findPart finds a part by the hash of its object's address.
func findPart(x *hashTable[part], key uint64) (e entry[part], ok bool) {
	if x.n == 0 {
		return e, false
	}
	number, hash := split(key)
	e.shard = &x.shards[number]
	size, want := len(e.slots), partOf(key, 0)
	if size == 0 {
		return e, false
	}
	first := home(hash, size)
	e.at = first
	for far := 0; ; far++ {
		switch p := e.slots[e.at]; {
		case p == 0:
			return e, false
		case (p^want)>>partHash == 0:
			return e, true
		case p < want && e.at >= first: // so it belongs at the first slot or before it
		case behind(p, e.at, size) < far:
			return e, false
		}
		e.at = e.after(e.at)
	}
}

// named is an entry of a table of chunks: how far it is behind the slot where it belongs, 10
// bits, and the number of a chunk. Entries are 8 slots behind on average in a shard that is about
// to grow. That any is 2^10 behind has a chance below 2^-100, as nobody can choose the hashes.
type named uint32

func (n named) number() uint32 { return uint32(n) & (1<<numberBits - 1) }

// find finds a chunk by its id.
func (t *Table) find(id uint64) (e entry[named], r ref, ok bool) {
	e, ok = findNamed(&t.byID, id, func(n uint32) bool {
		r = refOf(id, n)
		return t.key(r) == id
	})
	return e, r, ok
}

// findNamed finds an entry by its key, of the chunk that is the one.
func findNamed(x *hashTable[named], key uint64, is func(number uint32) bool) (e entry[named], ok bool) {
	if x.n == 0 {
		return e, false
	}
	number, hash := split(key)
	e.shard = &x.shards[number]
	if len(e.slots) == 0 {
		return e, false
	}
	e.at = home(hash, len(e.slots))
	for far := named(0); ; far += 1 << numberBits {
		n := e.slots[e.at]
		if n < far || n == 0 { // all further entries belong behind the key
			return e, false
		}
		if n>>numberBits == far>>numberBits && is(n.number()) {
			return e, true
		}
		e.at = e.after(e.at)
	}
}
