package chunks

import (
	"slices"

	"github.com/cognitora/dataplane/kv/residency"
)

// slot is an entry of a hashTable. 0 is none.
type slot[S any] interface {
	~uint32 | ~uint64
	// behind returns how many slots the entry at a slot is behind the one where it belongs, among
	// size slots.
	behind(at, size int) int
	// moved returns the entry as it stands some slots further behind.
	moved(by int) S
}

// hashTable is a hash table with open addressing, in shards. Entries that belong at an earlier slot come
// first (Robin Hood hashing), so that a shard that is nearly full is still fast, and an entry goes
// without a trace. A shard grows by an eighth when fifteen of sixteen slots are taken, and never
// shrinks.
type hashTable[S slot[S]] struct {
	hash   func(s S) uint32 // of an entry: that of its key, without the bits of the shard
	shards [1 << shardBits]shard[S]
	n      int
}

type shard[S slot[S]] struct {
	slots []S
	n     int
}

const shardBits = 6

// entry is where an entry is.
type entry[S slot[S]] struct {
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
		if s == 0 || s.behind(next, len(e.slots)) == 0 {
			break
		}
		e.slots[e.at] = s.moved(-1)
		e.at = next
	}
	e.slots[e.at] = 0
	e.n--
	x.n--
}

func (x *hashTable[S]) grow(h *shard[S]) {
	was := h.slots
	h.slots = slices.Grow([]S(nil), len(was)+max(4, len(was)/16))
	h.slots = h.slots[:cap(h.slots)]
	for i, s := range was {
		if s != 0 {
			h.put(x.hash(s), s.moved(-s.behind(i, len(was))))
		}
	}
}

// put puts an entry behind those that belong at its slot or at an earlier one.
func (h *shard[S]) put(hash uint32, s S) {
	i, far := home(hash, len(h.slots)), 0
	for h.slots[i] != 0 && h.slots[i].behind(i, len(h.slots)) >= far {
		i, far = h.after(i), far+1
	}
	for s = s.moved(far); s != 0; i = h.after(i) {
		if s, h.slots[i] = h.slots[i], s; s != 0 {
			s = s.moved(1)
		}
	}
}

func (h *shard[S]) after(i int) int {
	if i++; i < len(h.slots) {
		return i
	}
	return 0
}

// numberBits is the length of a chunk's number.
const numberBits = 22

// part is an entry of the table of parts: 40 bits of the hash of an object's address, the number of
// its chunk, and its tiers. With the bits of the shard that is 46 bits of the hash. Of a million
// parts two have the same with a chance of 1 to 128. The second one does not count then. A removal
// of an object that is no part takes away a part with a chance of 1 to 2^26. So a chunk may count
// for less than it should, and never for more.
type part uint64

const (
	partTiers = 2 // bits
	partHash  = numberBits + partTiers
	tierShift = 1 // of residency.Host
)

func partOf(hash uint64, chunk uint32) part {
	return part(hash<<shardBits>>partHash<<partHash | uint64(chunk)<<partTiers)
}

func (p part) chunk() uint32  { return uint32(p) >> partTiers & (1<<numberBits - 1) }
func (p part) moved(int) part { return p }

// findPart finds a part by the hash of its object's address.
func findPart(x *hashTable[part], key uint64) (e entry[part], ok bool) {
	number, hash := split(key)
	e.shard = &x.shards[number]
	size, want := len(e.slots), partOf(key, 0)
	if size == 0 {
		return e, false
	}
	e.at = home(hash, size)
	for far := 0; ; far++ {
		p := e.slots[e.at]
		if (p^want)>>partHash == 0 && p != 0 {
			return e, true
		}
		if p == 0 || p.behind(e.at, size) < far {
			return e, false
		}
		e.at = e.after(e.at)
	}
}

func (p part) tiers() residency.Tiers { return residency.Tiers(p) << tierShift & anyTier }

func (p part) with(tiers residency.Tiers) part {
	return p&^(1<<partTiers-1) | part(tiers>>tierShift)
}

func (p part) behind(at, size int) int {
	if at -= home(uint32(p>>32), size); at < 0 {
		at += size
	}
	return at
}

// named is an entry of the table of chunks: how far it is behind the slot where it belongs, 10 bits,
// and the number of a chunk. Entries come 10 slots behind on average. With hashes that nobody can
// choose, 2^10 slots have a chance below 2^-100.
type named uint32

func (n named) chunk() uint32       { return uint32(n) & (1<<numberBits - 1) }
func (n named) moved(by int) named  { return n + named(by)<<numberBits }
func (n named) behind(int, int) int { return int(n >> numberBits) }

// find finds a chunk by its id.
func (t *Table) find(id uint64) (e entry[named], ok bool) {
	number, hash := split(id)
	e.shard = &t.byID.shards[number]
	if len(e.slots) == 0 {
		return e, false
	}
	e.at = home(hash, len(e.slots))
	for far := named(0); ; far += 1 << numberBits {
		n := e.slots[e.at]
		if n < far || n == 0 { // all further entries belong behind the id
			return e, false
		}
		if n>>numberBits == far>>numberBits && t.chunk(n.chunk()).key() == id {
			return e, true
		}
		e.at = e.after(e.at)
	}
}
