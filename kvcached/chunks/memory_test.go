package chunks

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// load is a kind of chunks with which the Table is measured.
type load struct {
	what   string
	source alias.Source
	blocks int // of a chunk
}

func loads() []load {
	tier := alias.Source{Scheme: alias.VLLMTier, Keys: bucket, Engine: vllmtier.Client("gpu1"), World: 1, Served: "m",
		Revision: "-"}
	pages := sglang()
	pages.World = 1
	return []load{
		{"LMCache redis", sourceOf(1, 0, true), 16},
		{"LMCache resp, 32 layers", sourceOf(1, 32, false), 16},
		{"vLLM 16", tier, 1},
		{"vLLM 32", tier, 2},
		{"vLLM 64", tier, 4},
		{"vLLM 128", tier, 8},
		{"HiCache 64", pages, 4},
	}
}

// table makes a Table that takes what is told of the load.
func (l *load) table(maxParts int) *Table {
	t := New(Options{Index: nothing{}, MaxParts: maxParts})
	t.Asked(l.source.Engine, bucket, tierKey("0123456789ab", 0))
	return t
}

// chunk returns chunk n of a prompt, and the changes that bring its parts to RAM.
func (l *load) chunk(n int) (c alias.Chunk, parts []Change) {
	d := block.Seed("m", "", "")
	d = block.Next(d, &[block.Tokens]uint32{uint32(n)})
	c.Name, c.Parent = alias.Name(100+n), block.NameOf(&d)
	for range l.blocks {
		d = block.Next(d, &[block.Tokens]uint32{})
		c.Blocks = append(c.Blocks, d[:block.NameBytes]...)
	}
	switch l.source.Scheme {
	case alias.VLLMTier:
		return c, []Change{*tierChange(tierKey("0123456789ab", n), nil, residency.Host, true)}
	case alias.HiCache:
		h := hicache.Next(hicache.Hash{}, []uint32{uint32(n)})
		c.Name = h.Name()
		for _, half := range []string{"k", "v"} {
			parts = append(parts, *tierChange(fmt.Appendf(nil, "%x_org-m_0_1_%s", h, half), nil, residency.Host, true))
		}
		return c, parts
	}
	for _, k := range keysOf(&l.source, c.Name) {
		key := lmcache.Append(nil, &k)
		parts = append(parts, Change{Addr: block.OfKey(block.IDOf(keySpace), key), Namespace: keySpace, Key: key,
			Tier: residency.Host, Present: true})
	}
	return c, parts
}

// heap returns the bytes of all objects.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// nothing is an index that keeps nothing.
type nothing struct{}

func (nothing) Apply(*residency.Change) {}

// TestMemory measures all that a Table of each kind takes while it grows to twice its size. The
// target is 40 bytes for each block. The test leaves it a tenth more, as other objects of the heap
// and the growth of slices differ between runs and versions of Go.
func TestMemory(t *testing.T) {
	for _, l := range loads() {
		empty, n, most := heap(), 0, 0.0
		table := l.table(0)
		for step := range 9 {
			for n < (8+step)*memoryParts/8/l.source.Parts() {
				c, parts := l.chunk(n)
				for k := range parts {
					table.Apply(&parts[k])
				}
				if taken, err := table.Tell(&l.source, []alias.Chunk{c}); taken != 1 || err != nil {
					t.Fatal(taken, err)
				}
				table.pending = table.pending[:0]
				n++
			}
			most = max(most, float64(heap()-empty)/float64(n*l.blocks))
		}
		t.Logf("%s: %.1f bytes for each block of 16 tokens", l.what, most)
		if st := table.Stats(); most > 44 || n-st.Counted > 2 { // two may have parts of the same hash as others
			t.Errorf("%s: %.1f bytes for each block of 16 tokens, 40 are the target; %+v", l.what, most, st)
		}
	}
}

// memoryParts is the number of parts from which TestMemory measures. With fewer ones the parts of a
// Table that do not grow weigh more: 30 KB.
const memoryParts = 1 << 15

// BenchmarkTurnover measures what a chunk costs that comes, is told and goes, in a table with many.
func BenchmarkTurnover(b *testing.B) {
	const held = 1 << 14
	for _, l := range loads() {
		b.Run(l.what, func(b *testing.B) {
			many := held / max(1, int(l.source.Layers))
			told, parts := make([]alias.Chunk, 2*many), make([][]Change, 2*many)
			for i := range told {
				told[i], parts[i] = l.chunk(i)
			}
			t := l.table(0)
			come := func(i int) {
				for k := range parts[i] {
					c := parts[i][k]
					t.Apply(&c)
				}
				if n, err := t.Tell(&l.source, told[i:i+1]); n != 1 || err != nil {
					b.Fatal(n, err)
				}
				t.pending = t.pending[:0]
			}
			for i := range many {
				come(i)
			}
			b.ReportAllocs()
			for i := many; b.Loop(); i++ {
				come(i % len(told))
				for _, c := range parts[(i-many)%len(told)] {
					c.Present = false
					t.Apply(&c)
				}
			}
		})
	}
}

// BenchmarkOthers measures the removal of objects that are no parts.
func BenchmarkOthers(b *testing.B) {
	l := loads()[2]
	t := l.table(0)
	for i := range 1 << 16 {
		_, parts := l.chunk(i)
		t.Apply(&parts[0])
	}
	other := make([]Change, 1<<12)
	for i := range other {
		other[i].Addr, other[i].Tier = block.OfKey(block.ModelID{}, []byte{byte(i), byte(i >> 8)}), residency.Host
	}
	for i := 0; b.Loop(); i++ {
		t.Apply(&other[i%len(other)])
	}
}

// BenchmarkFill measures what a chunk costs that comes to a table that grows to many.
func BenchmarkFill(b *testing.B) {
	const many = 1 << 16
	for _, l := range loads() {
		b.Run(l.what, func(b *testing.B) {
			many := many / max(1, int(l.source.Layers))
			told, parts := make([]alias.Chunk, many), make([][]Change, many)
			for i := range told {
				told[i], parts[i] = l.chunk(i)
			}
			for b.Loop() {
				t := l.table(0)
				for i := range many {
					for k := range parts[i] {
						t.Apply(&parts[i][k])
					}
					if n, err := t.Tell(&l.source, told[i:i+1]); n != 1 || err != nil {
						b.Fatal(n, err)
					}
					t.pending = t.pending[:0]
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/chunk")
		})
	}
}
