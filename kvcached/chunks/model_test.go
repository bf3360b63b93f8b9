package chunks

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const keySpace = "key1;resp.0;"

func sourceOf(world, layers uint32, halves bool) alias.Source {
	return alias.Source{Scheme: alias.LMCache, Keys: keySpace, Model: "/models/m", DType: "bfloat16", World: world,
		Layers: layers, Halves: halves, First: lmcache.First("0"), Served: "m", Revision: "-"}
}

// chunkOf returns chunk n of a prompt, with two blocks. Variants have other blocks.
func chunkOf(n, variant int) alias.Chunk {
	c := alias.Chunk{Name: alias.Name(100 + n)}
	for i := range 2 {
		c.Blocks = binary.LittleEndian.AppendUint64(c.Blocks, uint64(1000*(variant+1)+2*n+i))
	}
	if n > 0 {
		binary.LittleEndian.PutUint64(c.Parent[:], uint64(1000*(variant+1)+2*n-1))
	}
	return c
}

// keysOf returns the keys of a chunk's parts.
func keysOf(s *alias.Source, n alias.Name) (all []alias.Key) {
	for worker := range s.World {
		for layer := range max(s.Layers, 1) {
			for _, half := range []alias.Half{alias.Whole, alias.Second, alias.First} {
				if s.Halves != (half != alias.Whole) {
					continue
				}
				k := s.Carrier(n)
				k.Worker, k.Half = worker, half
				if s.Layers > 0 {
					k.Layer = layer
				}
				all = append(all, k)
			}
		}
	}
	return all
}

// object is what the index holds: a chunk by the namespace and name of its last block.
type object struct{ keySpace, last string }

// index records the objects.
type index map[object]residency.Tiers

func (x index) Apply(c *residency.Change) {
	o := object{c.Namespace, string(c.Addr.Digest[:8]) + "|" + string(c.Names) + "|" + string(c.Parent[:8])}
	if c.Present {
		x[o] |= c.Tier
	} else {
		if _, ok := x[o]; !ok {
			panic(fmt.Sprintf("%q goes and is not there", o))
		}
		if x[o] &^= c.Tier; x[o] == 0 {
			delete(x, o)
		}
	}
}

// saying is a source and what it tells of a chunk.
type saying struct {
	source  alias.Source
	variant int
}

// truth is a host's store and what is told of its chunks, in plain maps.
type truth struct {
	t     *Table
	index index
	parts map[string]*object2
	told  map[truthName]*told
}

// object2 is a part in the store.
type object2 struct {
	attr  []byte
	tiers residency.Tiers
}

type truthName struct {
	halves, layers bool
	world          uint32
	n              int
}

type told struct {
	saying
	known, disputed bool
}

func (m *truth) restart() {
	m.index = index{}
	m.t = New(Options{Index: m.index})
	m.told = map[truthName]*told{}
}

func nameOf(s *alias.Source, n int) truthName {
	return truthName{s.Halves, s.Layers > 0, s.World, n}
}

// here returns the parts of a chunk, and the tiers that all of them have.
func (m *truth) here(s *alias.Source, n int, all uint32) (parts int, host, disk bool) {
	host, disk = true, true
	wide := *s
	if s.Layers > 0 {
		wide.Layers = all
	}
	for _, k := range keysOf(&wide, alias.Name(100+n)) {
		if p := m.parts[string(lmcache.Append(nil, &k))]; p != nil {
			parts++
			host, disk = host && p.tiers&residency.Host != 0, disk && p.tiers&residency.Disk != 0
		}
	}
	return parts, host, disk
}

func (m *truth) say(s *alias.Source, n, variant int) (ok bool) {
	h := m.told[nameOf(s, n)]
	if h == nil {
		h = &told{}
		m.told[nameOf(s, n)] = h
	}
	parts, _, _ := m.here(s, n, mostLayers)
	if is := (saying{*s, variant}); !h.known || parts == 0 {
		*h = told{saying: is, known: true}
	} else if h.saying != is {
		h.disputed = true
	}
	return !h.disputed
}

const mostLayers = 3

// change brings a part to a tier, or takes it away.
func (m *truth) change(k *alias.Key, tier residency.Tiers, present bool) {
	key := string(lmcache.Append(nil, k))
	p := m.parts[key]
	c := Change{Addr: block.OfKey(block.IDOf(keySpace), []byte(key)), Tier: tier, Present: present}
	s := sourceOf(k.World, 0, k.Half != alias.Whole)
	if k.Layer != alias.NoLayer {
		s.Layers = 1
	}
	n := int(k.Name) - 100
	if present {
		if p == nil {
			p = &object2{}
			m.parts[key] = p
		}
		p.tiers |= tier
		c.Namespace, c.Key, c.Attr = keySpace, []byte(key), p.attr
		if _, note, ok := alias.CutNote(p.attr); ok {
			from, chunk, _ := alias.ParseNote(note, keySpace, k)
			m.say(&from, n, int(binary.LittleEndian.Uint64(chunk.Blocks)/1000)-1)
		}
	} else if p != nil {
		if p.tiers &^= tier; p.tiers == 0 {
			delete(m.parts, key)
		}
		if parts, _, _ := m.here(&s, n, mostLayers); parts == 0 {
			if h := m.told[nameOf(&s, n)]; h != nil && h.disputed {
				delete(m.told, nameOf(&s, n))
			}
		}
	}
	m.t.Apply(&c)
}

// keep writes the waiting notes.
func (m *truth) keep() {
	for _, a := range m.t.take() {
		for key, p := range m.parts {
			if block.OfKey(block.IDOf(keySpace), []byte(key)) == a && p.tiers&residency.Host != 0 {
				p.attr = append(p.attr, m.t.note(&a, p.attr)...)
			}
		}
	}
}

// want returns the objects that should be there.
func (m *truth) want() index {
	x := index{}
	for name, h := range m.told {
		if !h.known || h.disputed {
			continue
		}
		parts, host, disk := m.here(&h.source, name.n, mostLayers)
		exact, _, _ := m.here(&h.source, name.n, h.source.Layers)
		if parts != h.source.Parts() || exact != parts {
			continue
		}
		c := chunkOf(name.n, h.variant)
		o := object{h.source.Namespace(2 * block.Tokens).String(),
			string(c.Blocks[8:]) + "|" + string(c.Blocks[:8]) + "|" + string(c.Parent[:])}
		if host {
			x[o] |= residency.Host
		}
		if disk || !host {
			x[o] |= residency.Disk
		}
	}
	return x
}

// TestModel brings parts of chunks to tiers and takes them away, tells what chunks stand for,
// rightly and wrongly, before and after, and starts the daemon anew with what is on SSD. The index
// then has exactly the chunks that are told in one way and all of whose parts are here.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &truth{parts: map[string]*object2{}}
		m.restart()
		var sources []alias.Source
		for _, world := range []uint32{1, 2} {
			for _, layers := range []uint32{0, 2} {
				sources = append(sources, sourceOf(world, layers, true), sourceOf(world, layers, false))
			}
		}
		right := sources
		if rapid.Bool().Draw(t, "with faults") {
			for _, s := range right[:4] {
				s.Revision = "other"
				sources = append(sources, s)
			}
			sources = append(sources, sourceOf(1, mostLayers, true), sourceOf(1, 1, true))
		}
		for range rapid.IntRange(1, 150).Draw(t, "steps") {
			s := rapid.SampledFrom(right).Draw(t, "source")
			n := rapid.IntRange(0, 2).Draw(t, "chunk")
			keys := keysOf(&s, alias.Name(100+n))
			tier := rapid.SampledFrom([]residency.Tiers{residency.Host, residency.Disk}).Draw(t, "tier")
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0, 1, 2: // a whole chunk comes or goes
				present := rapid.Bool().Draw(t, "present")
				for i := range keys {
					m.change(&keys[i], tier, present)
				}
			case 3, 4, 5:
				m.change(&keys[rapid.IntRange(0, len(keys)-1).Draw(t, "part")], tier, rapid.Bool().Draw(t, "present"))
			case 6, 7:
				from := rapid.SampledFrom(sources).Draw(t, "teller")
				variant := rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "variant")
				c, want := chunkOf(n, variant), 0
				if m.say(&from, n, variant) {
					want = 1
				}
				if taken, err := m.t.Tell(&from, []alias.Chunk{c}); err != nil || taken != want {
					t.Fatalf("%d taken, want %d, %v", taken, want, err)
				}
			case 8:
				m.keep()
			case 9:
				if rapid.IntRange(0, 3).Draw(t, "restart") > 0 {
					break
				}
				was := m.parts
				m.parts = map[string]*object2{}
				m.restart()
				for _, s := range right { // in the order of the keys
					for n := range 3 {
						for _, k := range keysOf(&s, alias.Name(100+n)) {
							if p := was[string(lmcache.Append(nil, &k))]; p != nil && p.tiers&residency.Disk != 0 {
								m.parts[string(lmcache.Append(nil, &k))] = &object2{attr: p.attr}
								m.change(&k, residency.Disk, true)
							}
						}
					}
				}
			}
			if want := m.want(); !maps.Equal(m.index, want) {
				t.Fatalf("index has %q, want %q", m.index, want)
			}
			m.checkParts(t, sources)
			m.checkStats(t)
		}
	})
}

// checkParts asks for the keys of all chunks by their last blocks. Only those that
// count have keys.
func (m *truth) checkParts(t *rapid.T, sources []alias.Source) {
	for _, s := range sources {
		for n := range 3 {
			for variant := range 2 {
				c, want := chunkOf(n, variant), 0
				h := m.told[nameOf(&s, n)]
				is := saying{s, variant}
				parts, _, _ := m.here(&s, n, mostLayers)
				exact, _, _ := m.here(&s, n, s.Layers)
				if h != nil && h.known && !h.disputed && h.saying == is && parts == s.Parts() && exact == parts {
					want = parts
				}
				_, got, _ := m.t.Parts(s.Namespace(2*block.Tokens).String(), []block.Name{block.Name(c.Blocks[8:])}, 0)
				if len(got) != want {
					t.Fatalf("%d keys of chunk %d of %+v, want %d", len(got), n, s, want)
				}
				for i, k := range keysOf(&s, c.Name) {
					at := block.OfKey(block.IDOf(keySpace), lmcache.Append(nil, &k))
					if want > 0 && !slices.Contains(got, at.Digest) {
						t.Fatalf("key %d is missing", i)
					}
				}
			}
		}
	}
	if m.t.ends.n != len(m.index) {
		t.Fatalf("%d chunks can be found, %d count", m.t.ends.n, len(m.index))
	}
}

func (m *truth) checkStats(t *rapid.T) {
	st := m.t.Stats()
	chunks := map[truthName]bool{}
	for key := range m.parts {
		k, _ := lmcache.Parse([]byte(key))
		chunks[truthName{k.Half != alias.Whole, k.Layer != alias.NoLayer, k.World, int(k.Name) - 100}] = true
	}
	if st.Parts != len(m.parts) || st.Counted != len(m.index) ||
		st.Counted+st.Untold+st.Incomplete+st.Disputed != len(chunks) || m.t.byID.n != len(chunks)+st.Idle {
		t.Fatalf("%+v, want %d parts of %d chunks, %d counted", st, len(m.parts), len(chunks), len(m.index))
	}
}

// TestKeep checks that Keep writes a note once, and counts what cannot be written.
func TestKeep(t *testing.T) {
	m := &truth{parts: map[string]*object2{}}
	m.restart()
	s, c := sourceOf(1, 0, true), chunkOf(0, 0)
	if _, err := m.t.Tell(&s, []alias.Chunk{c}); err != nil {
		t.Fatal(err)
	}
	for _, k := range keysOf(&s, c.Name) {
		m.change(&k, residency.Host, true)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	carrier := s.Carrier(c.Name)
	at := block.OfKey(block.IDOf(keySpace), lmcache.Append(nil, &carrier))
	var attr []byte
	m.t.Keep(ctx, func(_ context.Context, a block.Addr, more func([]byte) []byte) error {
		if a != at {
			t.Errorf("%+v is annotated, not the carrier", a)
		}
		attr = append(attr, more(attr)...)
		if more(attr) != nil {
			t.Error("a second note")
		}
		stop()
		return fmt.Errorf("no room")
	})
	_, note, ok := alias.CutNote(attr)
	from, is, parsed := alias.ParseNote(note, keySpace, &carrier)
	if !ok || !parsed || from != s || !bytes.Equal(is.Blocks, c.Blocks) || m.t.Stats().Unkept != 1 {
		t.Errorf("%q, %+v %+v", attr, is, m.t.Stats())
	}
}
