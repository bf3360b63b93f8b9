package chunks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"sync"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/residency"
)

// Bounds of a Table besides Options.
const (
	maxIdle    = 1 << 14 // told chunks without parts
	maxPending = 1 << 12 // notes that wait to be written
	maxUnnoted = 1 << 16 // objects that wait to be told, and then get a note
	maxOrigins = 1 << 10 // origins of chunks, families with lengths, engines, and namespaces in beside
	maxBeside  = 1 << 6  // models of a namespace in beside
	maxParts   = 1 << 21
)

// Options are the settings of a Table.
type Options struct {
	// Index gets the objects that complete chunks are. Required.
	Index interface{ Apply(c *residency.Change) }
	// MaxParts bounds the parts of chunks; 0: 2^20. It is at most 2^21.
	MaxParts int
}

// Table knows the chunks of a host. Any number of goroutines may call its methods.
type Table struct {
	o     Options
	wake  chan struct{} // a note waits
	seed  maphash.Seed  // of the ids of chunks
	seeds [2]uint64     // of the hashes of addresses and ends

	mu      sync.Mutex
	origins numbers[origin, space]
	chunks  arena[chunk]
	records [tallyBytes/block.NameBytes + block.MaxNames + 3]arena[byte] // by length in names
	byID    hashTable[named]
	ends    hashTable[named] // chunks that count and whose keys follow from their names (parts.go)
	parts   hashTable[part]
	idle    queue
	unnoted map[ref]block.Digest // objects in RAM that wait to be told, by chunk, unless the keys are LMCache's
	lengths map[uint64]length    // bytes of a part that has blocks, by the hash of the family
	beside  beside
	engines map[engine]string // MODEL_CONFIG of the engines with an access key of their own
	pending []block.Addr      // parts whose notes wait, oldest first
	counts  Stats
	states  [states]int
}

// family is what the keys of a chunk have in common with those of other chunks.
type family struct {
	scheme             alias.Scheme
	keys, model, dtype string
	world              uint32
	layers, halves     bool
}

// single says whether each chunk of the family has one part. With MLA there are no second halves.
func (f *family) single() bool {
	return f.world == 1 && !f.layers && (!f.halves || f.scheme == alias.HiCacheMLA)
}

// familyOf returns the family of a source's chunks.
func familyOf(s *alias.Source) *family {
	return &family{s.Scheme, s.Keys, s.Model, s.DType, s.World, s.Layers > 0, s.Halves}
}

// origin is where what is told of a chunk comes from. All chunks of an origin are objects of one
// namespace.
type origin struct {
	alias.Source
	tokens int // of a chunk
}

// space is the namespace of an origin's objects.
type space struct {
	text   string
	id     block.ModelID
	family uint64 // hash
}

// New makes an empty Table.
func New(o Options) *Table {
	o.MaxParts = min(cmp.Or(o.MaxParts, 1<<20), maxParts)
	t := &Table{o: o, wake: make(chan struct{}, 1), seed: maphash.MakeSeed(),
		seeds: [2]uint64{rand.Uint64(), rand.Uint64()}, origins: newNumbers[origin, space](),
		chunks: newArena[chunk](1), idle: newQueue(), unnoted: map[ref]block.Digest{},
		engines: map[engine]string{}, lengths: map[uint64]length{}, beside: beside{}}
	for i := range t.records {
		t.records[i] = newArena[byte](max(i, 1) * block.NameBytes)
	}
	t.parts.step, t.byID.step, t.ends.step = 16, 8, 8 // the hash of a named is a cache miss away
	t.parts.hash = func(p part) uint32 { return uint32(p >> partHash) }
	t.byID.hash = func(n named) uint32 { return t.chunk(ref(n.number())).hash() }
	t.ends.hash = func(n named) uint32 {
		_, hash := split(t.hashOf(t.end(t.chunk(ref(n.number())))))
		return hash
	}
	return t
}

// Change says that an object of client keys came to a tier or left it.
type Change struct {
	Addr      block.Addr
	Namespace string          // canonical text, if Present
	Key, Attr []byte          // if Present; valid during the call
	Tier      residency.Tiers // Host or Disk
	Present   bool
	Length    int // of the object in bytes; 0: unknown
}

// mix hashes what has the bits of a hash already. A client that chooses keys does not know the
// seeds.
func (t *Table) mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^t.seeds[0], b^t.seeds[1])
	return hi ^ lo
}

// part finds a part by its object's address, of which it returns the hash.
func (t *Table) part(a *block.Addr) (at entry[part], hash uint64, known bool) {
	le := binary.LittleEndian
	hash = t.mix(le.Uint64(a.Digest[:])^le.Uint64(a.Model[:]), le.Uint64(a.Digest[8:]))
	at, known = findPart(&t.parts, hash)
	return at, hash, known
}

// Apply applies a change of the store. Apply may be called under the store's lock.
func (t *Table) Apply(c *Change) {
	if !c.Present {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lost(c)
		return
	}
	k, err := parse(c.Key)
	if errors.Is(err, alias.ErrOther) {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case errors.Is(err, alias.ErrTags):
		t.counts.Tags++
	case errors.Is(err, hicache.ErrBeside):
		t.addBeside(c.Namespace, k.Model)
	case err != nil:
		t.counts.Forms++
	default:
		if model, may := hicache.Beside(&k); may && !t.knowsPage(c, &k) {
			t.addBeside(c.Namespace, model)
			return
		}
		t.gained(c, &k)
	}
}

// gained adds a part to a tier. The caller holds t.mu.
func (t *Table) gained(c *Change, k *alias.Key) {
	f := family{k.Scheme, c.Namespace, k.Model, k.DType, k.World, k.Layer != alias.NoLayer, k.Half != alias.Whole}
	family := maphash.Comparable(t.seed, f)
	id := t.id(family, k.Name)
	at, hash, known := t.part(&c.Addr)
	if !known && t.parts.n >= t.o.MaxParts || known && t.key(at.get().chunk()) != id {
		t.counts.Full++ // no room, or another object with the same hash
		return
	}
	var r ref
	if known {
		r = at.get().chunk()
	} else {
		r = t.enter(id, f.single())
	}
	h, was := t.begin(r)
	switch p := partOf(hash, r); {
	case known:
		p = at.get()
		at.set(p.with(p.tiers() | c.Tier))
		t.count(h, p.tiers(), p.tiers()|c.Tier, k.Layer)
	case h.is(single) && t.tally(h).any > 0: // another object with the same name
		t.counts.Full++
		h.put(h.get() | disputed)
	default:
		t.parts.put(hash, p.with(c.Tier))
		t.count(h, 0, c.Tier, k.Layer)
		known = true
	}
	if known && k.Carries() {
		t.read(c, k, r)
	}
	if known && (k.Half != alias.First || k.Scheme != alias.LMCache) {
		t.measure(family, length{c.Length, h.origin() != 0})
	}
	t.settle(r, was)
}

// length is that of a part in bytes.
type length struct {
	bytes int
	told  bool // of a told chunk
}

// measure notes the length of a family's part. One of a told chunk, which is full, stands for all.
// Before there is one, the largest does: LMCache may store what a prompt has after its last full
// chunk.
func (t *Table) measure(family uint64, is length) {
	was := t.lengths[family]
	if is.bytes > 0 && is != was && (is.told || !was.told && is.bytes > was.bytes) {
		remember(t.lengths, maxOrigins, family, is)
	}
}

// read learns from the note of a part, or has the note written if the part has none.
func (t *Table) read(c *Change, k *alias.Key, r ref) {
	_, note, ok := alias.CutNote(c.Attr)
	if !ok {
		if c.Tier != residency.Host {
			return
		}
		if !k.Scheme.Derived() && t.chunk(r).origin() == 0 {
			remember(t.unnoted, maxUnnoted, r, c.Addr.Digest)
			return
		}
		t.want(c.Addr, r)
		return
	}
	s, chunk, ok := alias.ParseNote(note, c.Namespace, k)
	if !ok || check(&s) != nil || chunk.Tokens() == 0 {
		t.counts.Notes++
		return
	}
	if t.learn(r, &s, &chunk) {
		delete(t.unnoted, r)
	}
}

// lost removes a part from a tier. The caller holds t.mu.
func (t *Table) lost(c *Change) {
	at, _, known := t.part(&c.Addr)
	if !known || at.get().tiers()&c.Tier == 0 {
		return
	}
	p := at.get()
	h, was := t.begin(p.chunk())
	is := p.tiers() &^ c.Tier
	if is == 0 {
		t.parts.cut(at)
	} else {
		at.set(p.with(is))
	}
	t.count(h, p.tiers(), is, alias.NoLayer)
	t.settle(p.chunk(), was)
}

// id returns the hash of a chunk's family, by its hash, and name. It has 64 bits like the names of
// blocks.
func (t *Table) id(family uint64, n alias.Name) uint64 {
	return maphash.Comparable(t.seed, [2]uint64{family, uint64(n)})
}

// enter returns a chunk, new or known.
func (t *Table) enter(id uint64, one bool) ref {
	if _, r, known := t.find(id); known {
		return r
	}
	number := t.chunks.add()
	r := refOf(id, number)
	h := t.chunk(r)
	for i := range h.id {
		h.id[i] = byte(id >> (8 * i))
	}
	if one {
		h.put(single)
	}
	t.make(h)
	t.byID.put(id, named(number))
	return r
}

// leave forgets a chunk without parts.
func (t *Table) leave(r ref) {
	if at, _, known := t.find(t.key(r)); known {
		t.byID.cut(at)
	}
	delete(t.unnoted, r)
	t.drop(t.chunk(r))
	t.chunks.drop(r.number())
}
