package chunks

import (
	"cmp"
	"encoding/binary"
	"errors"
	"sync"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/residency"
)

// Bounds of a Table besides Options.
const (
	maxIdle     = 1 << 14 // told chunks without parts
	maxPending  = 1 << 12 // notes that wait to be written
	maxFamilies = 1 << 10 // families of chunks, and origins
)

// Options are the settings of a Table.
type Options struct {
	// Index gets the objects that complete chunks are. Required.
	Index interface{ Apply(c *residency.Change) }
	// MaxParts bounds the parts of chunks; 0: 2^20.
	MaxParts int
}

// Table knows the chunks of a host. Any number of goroutines may call its methods.
type Table struct {
	o    Options
	wake chan struct{} // a note waits

	mu       sync.Mutex
	families numbers[family, int] // with the bytes of the last part that has blocks
	origins  numbers[origin, space]
	chunks   []chunk // by number; number 0 is unused
	free     []uint32
	byName   map[name]uint32
	ends     map[end]uint32        // chunks that count and whose keys follow from their names
	parts    map[uint64]part       // by place
	idle     list                  // chunks without parts, the oldest first
	unnoted  map[uint32]block.Addr // objects in RAM that wait to be told, by chunk, unless the keys are LMCache's
	beside   map[pages]struct{}    // SGLang's models that keep more than pages
	engines  map[engine]string     // MODEL_CONFIG of the engines with an access key of their own
	pending  []block.Addr          // parts whose notes wait, oldest first
	counts   Stats
	states   [states]int
}

// family is what the keys of a chunk have in common with those of other chunks.
type family struct {
	scheme             alias.Scheme
	keys, model, dtype string
	world              uint32
	layers, halves     bool
}

// origin is where what is told of a chunk comes from. All chunks of an origin are objects of one
// namespace.
type origin struct {
	alias.Source
	tokens int // of a chunk
}

// space is the namespace of an origin's objects.
type space struct {
	text string
	id   block.ModelID
}

type name struct {
	family uint32
	chunk  alias.Name
}

// part is an object with a part of a chunk.
type part struct {
	chunk uint32
	tiers residency.Tiers
}

// chunk is one that has parts, or was told.
type chunk struct {
	name   name
	parent block.Name
	blocks []byte // names of its blocks; nil: not told
	origin uint32 // 0: not told

	prev, next      uint32 // in the list of idle chunks
	any, host, disk uint32 // parts in any tier, and in each
	layers          uint32 // 1 + the largest layer of a part
	tiers           residency.Tiers
	state           state
	disputed        bool
}

// New makes an empty Table.
func New(o Options) *Table {
	o.MaxParts = cmp.Or(o.MaxParts, 1<<20)
	return &Table{o: o, wake: make(chan struct{}, 1), families: newNumbers[family, int](),
		origins: newNumbers[origin, space](), chunks: make([]chunk, 1), byName: map[name]uint32{},
		ends: map[end]uint32{}, parts: map[uint64]part{}, unnoted: map[uint32]block.Addr{},
		engines: map[engine]string{}, beside: map[pages]struct{}{}}
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

// place is the key of an object in the table of parts. The digest of a client's key does not depend
// on its namespace.
func place(a *block.Addr) uint64 {
	return binary.LittleEndian.Uint64(a.Digest[:]) ^ binary.LittleEndian.Uint64(a.Model[:])
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
		t.besides(c.Namespace, k.Model)
	case err != nil:
		t.counts.Forms++
	default:
		t.gained(c, &k)
	}
}

// gained adds a part to a tier. The caller holds t.mu.
func (t *Table) gained(c *Change, k *alias.Key) {
	at := place(&c.Addr)
	p, known := t.parts[at]
	if !known && len(t.parts) >= t.o.MaxParts {
		t.counts.Full++
		return
	}
	i := t.enter(&family{k.Scheme, c.Namespace, k.Model, k.DType, k.World, k.Layer != alias.NoLayer,
		k.Half != alias.Whole}, k.Name)
	if i == 0 || known && p.chunk != i { // no room, or another key with the same place
		t.counts.Full++
		if i != 0 {
			t.settle(i)
		}
		return
	}
	p.chunk = i
	t.count(i, p.tiers, -1)
	p.tiers |= c.Tier
	t.count(i, p.tiers, 1)
	t.parts[at] = p
	h := &t.chunks[i]
	if k.Layer != alias.NoLayer {
		h.layers = max(h.layers, 1+k.Layer)
	}
	if (k.Half != alias.First || k.Scheme != alias.LMCache) && c.Length > 0 {
		t.families.at(h.name.family).value = c.Length
	}
	if k.Carries() {
		t.read(c, k, i)
	}
	t.settle(i)
}

// read learns from the note of a part, or has the note written if the part has none.
func (t *Table) read(c *Change, k *alias.Key, i uint32) {
	_, note, ok := alias.CutNote(c.Attr)
	if !ok {
		if c.Tier != residency.Host {
			return
		}
		if !keyed(k) && t.chunks[i].origin == 0 {
			t.unnoted[i] = c.Addr
			return
		}
		t.want(c.Addr, i)
		return
	}
	s, chunk, ok := alias.ParseNote(note, c.Namespace, k)
	if !ok || check(&s) != nil || chunk.Tokens() == 0 {
		t.counts.Notes++
		return
	}
	t.learn(i, &s, &chunk)
}

// lost removes a part from a tier. The caller holds t.mu.
func (t *Table) lost(c *Change) {
	at := place(&c.Addr)
	p, known := t.parts[at]
	if !known || p.tiers&c.Tier == 0 {
		return
	}
	t.count(p.chunk, p.tiers, -1)
	if p.tiers &^= c.Tier; p.tiers == 0 {
		delete(t.parts, at)
	} else {
		t.parts[at] = p
		t.count(p.chunk, p.tiers, 1)
	}
	t.settle(p.chunk)
}

// count adds a part in tiers to its chunk, or subtracts it.
func (t *Table) count(i uint32, tiers residency.Tiers, by int32) {
	h := &t.chunks[i]
	if tiers != 0 {
		h.any += uint32(by)
	}
	if tiers&residency.Host != 0 {
		h.host += uint32(by)
	}
	if tiers&residency.Disk != 0 {
		h.disk += uint32(by)
	}
}

// enter returns the number of a chunk, new or known; 0: there is no room for its family.
func (t *Table) enter(f *family, n alias.Name) uint32 {
	number, ok := t.families.hold(*f)
	if !ok {
		return 0
	}
	key := name{number, n}
	if i, known := t.byName[key]; known {
		t.families.drop(number)
		return i
	}
	var i uint32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = uint32(len(t.chunks))
		t.chunks = append(t.chunks, chunk{})
	}
	t.chunks[i] = chunk{name: key, state: fresh}
	t.states[fresh]++
	t.byName[key] = i
	return i
}

// leave forgets a chunk without parts.
func (t *Table) leave(i uint32) {
	h := &t.chunks[i]
	t.states[h.state]--
	delete(t.byName, h.name)
	delete(t.unnoted, i)
	t.families.drop(h.name.family)
	if h.origin != 0 {
		t.origins.drop(h.origin)
	}
	*h = chunk{}
	t.free = append(t.free, i)
}
