package ram

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"testing"

	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/block"
)

// backed is a tier of blocks with real memory.
func backed(t testing.TB, granules int) *ours {
	arena, err := NewArena(ArenaOptions{Size: int64(granules) * Granule})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = arena.Close() })
	o := &ours{Tier: NewTier(arena, TierOptions{})}
	if o.ns, err = o.names.Hold(block.IDOf(someNamespace), someNamespace); err != nil {
		t.Fatal(err)
	}
	return o
}

// putUnder puts a block of n granules whose parent is block p, or none if p is negative.
func (o *ours) putUnder(n, p, granules int) (ID, error) {
	var room Room
	if p >= 0 {
		room.Parent = o.find(p)
	}
	x, again, err := o.Reserve(o.ns, granules*Granule, &room)
	for again {
		x, again, err = o.Reserve(o.ns, granules*Granule, &room)
	}
	if err != nil {
		return 0, err
	}
	m := Meta{Length: uint32(granules * Granule)}
	if p >= 0 {
		m.Parent = o.addr(p).Digest
	}
	a := o.addr(n)
	id := o.Publish(o.Hash(&a), &a, o.ns, x, m)
	o.Drop(x)
	return id, nil
}

func (o *ours) find(n int) ID {
	a := o.addr(n)
	return o.Find(o.Hash(&a), &a)
}

// TestLeafFirst uses prompts of a tree. Each prompt is complete in the tier once it has been used,
// and no block is there without its parent.
func TestLeafFirst(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		const granules = 24
		o := newOurs(t, granules*Granule, 0)
		come := map[int]bool{}
		for range rapid.IntRange(1, 60).Draw(r, "prompts") {
			// A node's children are 3n+1 to 3n+3: a path is a prompt.
			path := []uint32{0}
			for range rapid.IntRange(0, 10).Draw(r, "length") {
				path = append(path, 3*path[len(path)-1]+rapid.Uint32Range(1, 3).Draw(r, "child"))
			}
			replayed{o, t}.Request(path)
			for _, n := range path {
				if come[int(n)] = true; o.find(int(n)) == 0 {
					r.Fatalf("block %d of the last prompt is not here", n)
				}
			}
			for n := range come {
				if n > 0 && o.find(n) != 0 && o.find((n-1)/3) == 0 {
					r.Fatalf("block %d is here, but not its parent", n)
				}
			}
		}
	})
}

// TestTailFirst fills a tier with two prompts that were used twice. New blocks replace the end of
// the less recently used prompt.
func TestTailFirst(t *testing.T) {
	o := newOurs(t, 16*Granule, 0)
	p := replayed{o, t}
	first, second := []uint32{1, 2, 3, 4, 5, 6}, []uint32{11, 12, 13, 14, 15, 16}
	for range 2 {
		p.Request(first)
		p.Request(second)
	}
	for n := range uint32(6) {
		p.Request([]uint32{21 + n})
	}
	for _, prompt := range [][]uint32{first, second} {
		for _, n := range prompt {
			if here := o.find(int(n)) != 0; here != (n != 6 && n != 5) {
				t.Errorf("block %d: %v", n, here)
			}
		}
	}
}

// TestTier compares the tables with a model under all operations in any order. Some links to
// parents close cycles.
func TestTier(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := newModel(r)
		defer m.arena.Close()
		r.Repeat(map[string]func(*rapid.T){
			"put": m.put, "remove": m.remove, "read": m.read, "done": m.done, "pin": m.pin, "unpin": m.unpin,
			"": m.compare,
		})
		for _, k := range m.reads {
			m.Drop(k.x)
		}
		for n := range m.have {
			m.Remove(m.find(n))
		}
		if u := m.Usage(); u.Free != u.Size || u.Largest != u.Size || m.names.At(m.ns).holds != 1 {
			r.Fatalf("something is left: %+v, %d holds", u, m.names.At(m.ns).holds)
		}
	})
}

// model is a tier with its expected contents. Its blocks have numbers below modelBlocks.
type model struct {
	ours
	arena  *Arena
	gone   map[int]bool // evicted by the last put
	have   map[int]byte // what the blocks are full of
	pinned map[int]bool
	reads  []reading // the oldest first
}

const modelBlocks = 20

// reading is a reader's hold, and the byte that it must see.
type reading struct {
	x Ext
	c byte
}

func newModel(r *rapid.T) *model {
	const granules = 32
	arena, err := NewArena(ArenaOptions{Size: granules * Granule})
	if err != nil {
		r.Fatal(err)
	}
	m := &model{arena: arena, gone: map[int]bool{}, have: map[int]byte{}, pinned: map[int]bool{}}
	m.Tier = NewTier(arena, TierOptions{Pins: 8, Evicted: func(id ID) {
		for n := range modelBlocks {
			if m.find(n) == id {
				m.gone[n] = true
			}
		}
		if m.At(id).kid != 0 || m.At(id).pins > 0 {
			r.Fatal("a block that is no leaf, or is pinned, goes")
		}
	}})
	if m.ns, err = m.names.Hold(block.IDOf(someNamespace), someNamespace); err != nil {
		r.Fatal(err)
	}
	return m
}

// number draws a block.
func (m *model) number(r *rapid.T, label string) int {
	return rapid.IntRange(0, modelBlocks-1).Draw(r, label)
}

func (m *model) drop(n int) {
	delete(m.have, n)
	delete(m.pinned, n)
}

func (m *model) put(r *rapid.T) {
	n, size, c := m.number(r, "n"), rapid.IntRange(1, 9).Draw(r, "size"), rapid.Byte().Draw(r, "byte")
	clear(m.gone)
	id, err := m.putUnder(n, m.number(r, "parent"), size)
	for g := range m.gone {
		m.drop(g)
	}
	if err == nil {
		p := m.Payload(id)
		copy(p, bytes.Repeat([]byte{c}, len(p)))
		m.have[n] = c
		if m.At(id).pins == 0 {
			delete(m.pinned, n) // it has become too large
		}
	} else if !errors.Is(err, ErrFull) {
		r.Fatal(err)
	}
}

func (m *model) remove(r *rapid.T) {
	n := m.number(r, "n")
	if id := m.find(n); id != 0 {
		m.Remove(id)
	}
	m.drop(n)
}

func (m *model) read(r *rapid.T) {
	n := m.number(r, "n")
	if id := m.find(n); id != 0 && len(m.reads) < 4 {
		m.Hold(m.Body(id))
		m.reads = append(m.reads, reading{m.Body(id), m.have[n]})
	}
}

func (m *model) done(*rapid.T) {
	if len(m.reads) > 0 {
		m.Drop(m.reads[0].x)
		m.reads = m.reads[1:]
	}
}

func (m *model) pin(r *rapid.T) {
	n := m.number(r, "n")
	if id := m.find(n); id != 0 && m.Pin(id, "me", 1) == nil {
		m.pinned[n] = true
	}
}

func (m *model) unpin(r *rapid.T) {
	n := m.number(r, "n")
	if id := m.find(n); id != 0 {
		m.Unpin(id, "me")
	}
	delete(m.pinned, n)
}

// compare holds the tier to the model.
func (m *model) compare(r *rapid.T) {
	for n := range modelBlocks {
		id := m.find(n)
		if c, here := m.have[n]; here != (id != 0) {
			r.Fatalf("block %d: %v, in the model %v", n, id != 0, here)
		} else if here && m.Payload(id)[0] != c {
			r.Fatalf("block %d has other bytes", n)
		}
	}
	for _, k := range m.reads {
		if m.Memory(k.x)[0] != k.c {
			r.Fatal("a reader sees other bytes")
		}
	}
	if u := m.Usage(); u.Blocks != len(m.have) || u.Pins != len(m.pinned) || len(m.reads) == 0 && u.Held != 0 ||
		len(m.pinned) == 0 && u.Pinned != 0 || u.Pinned > u.Size/4 || int64(m.pins.owners["me"])*Granule != u.Pinned ||
		m.names.At(m.ns).Blocks != len(m.have) {
		r.Fatalf("%+v", u)
	}
}

// TestCycle: two blocks that name each other as parents can still be evicted.
func TestCycle(t *testing.T) {
	o := backed(t, 16)
	for _, link := range [][2]int{{1, 2}, {2, 3}, {3, 1}, {4, 4}} {
		if _, err := o.putUnder(link[0], link[1], 2); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.putUnder(5, -1, 16); err != nil {
		t.Error(err)
	}
	if u := o.Usage(); u.Cycles != 1 || u.Blocks != 1 {
		t.Errorf("%+v", u)
	}
}

// TestBookkeeping measures the memory of a resident block besides its payload. The names of evicted
// blocks are included.
func TestBookkeeping(t *testing.T) {
	if Poisoned {
		t.Skip("freed memory is overwritten in this build, and this arena has none")
	}
	for _, size := range []int{4 << 10, 64 << 10, 144 << 10, 1070 << 10} {
		// a third of the blocks that are put; so as many names are remembered, and every block has
		// been in both parts
		const blocks = 100_000
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		o := newOurs(t, int64(blocks*size)&^(Granule-1), 64)
		for n := range 3 * blocks {
			if !o.put(n, size) {
				t.Fatal("no room")
			}
			if n%64 == 63 {
				o.touch(n)
				o.touch(n)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		u := o.Usage()
		measured := float64(after.HeapAlloc-before.HeapAlloc) / float64(u.Blocks)
		t.Logf("blocks of %4d KiB: %5.1f bytes of heap each, %5.1f of it tables", size>>10, measured,
			float64(u.Tables)/float64(u.Blocks))
		if measured >= 200 {
			t.Errorf("%.0f bytes for a block of %d", measured, size)
		}
		runtime.KeepAlive(o)
	}
}

// TestNamespaceLimit: one tenant cannot use up the namespaces of the others. All tenants together
// have no more namespaces than the limit.
func TestNamespaceLimit(t *testing.T) {
	n := newNames(nil)
	hold := func(tenant, i int) (uint32, error) {
		name := fmt.Sprintf("key1;resp.%d;t%d", i, tenant)
		return n.Hold(block.IDOf(name), name)
	}
	for tenant := range MaxNamespaces / MaxTenantNamespaces {
		for i := range MaxTenantNamespaces {
			if _, err := hold(tenant, i); err != nil {
				t.Fatal(i, err)
			}
		}
		if _, err := hold(tenant, MaxTenantNamespaces); !errors.Is(err, ErrNamespaces) {
			t.Error(tenant, err)
		}
		if i, err := hold(tenant, 6); int(i) != tenant*MaxTenantNamespaces+7 || err != nil {
			t.Error("one that is known:", i, err)
		}
	}
	if _, err := hold(99, 0); !errors.Is(err, ErrNamespaces) {
		t.Error(err)
	}
	n.Drop(9)
	if _, err := hold(1, MaxTenantNamespaces); !errors.Is(err, ErrNamespaces) {
		t.Error("the namespace that one tenant gave up went to another that has its share:", err)
	}
	if i, err := hold(99, 0); i != 9 || err != nil {
		t.Error(i, err)
	}
	if want := uint64(MaxNamespaces/MaxTenantNamespaces + 2); n.refused != want {
		t.Error(n.refused, "refused, not", want)
	}
}

func TestPoison(t *testing.T) {
	if !Poisoned {
		t.Skip("this build does not overwrite freed memory: use -race or -tags kvdebug")
	}
	o := backed(t, 16)
	id, err := o.putUnder(1, -1, 2)
	if err != nil {
		t.Fatal(err)
	}
	p := o.Payload(id)
	o.Remove(id)
	if p[0] != 0xDB || p[len(p)-1] != 0xDB {
		t.Errorf("freed memory is %x", p[0])
	}
}

func TestArenaRefused(t *testing.T) {
	for _, size := range []int64{-1, 0, MinArena - 1, MaxArena + 1} {
		if _, err := NewArena(ArenaOptions{Size: size}); !errors.Is(err, ErrArena) {
			t.Errorf("%d: %v", size, err)
		}
	}
	a, err := NewArena(ArenaOptions{Size: 4 << 20, Huge: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("pages are", a.Backing())
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
}

// TestManyParents: the search through a block's ancestors holds the lock, so it is bounded. Beyond
// the bound the block is not linked to its parent.
func TestManyParents(t *testing.T) {
	const long = 1 << 13
	o := newOurs(t, 2*long*Granule, 0)
	put := func(n, parent int) {
		t.Helper()
		if _, err := o.putUnder(n, parent, 1); err != nil {
			t.Fatal(err)
		}
	}
	for n := range long {
		put(n, n-1)
	}
	top, kid := long+1, long+2
	put(top, -1)
	put(kid, top)
	put(top, long/4)
	if u := o.Usage(); u.Cycles != 0 || o.At(o.find(top)).parent != o.find(long/4) {
		t.Errorf("a link after %d parents: %+v", long/4, u)
	}
	put(top, long-1)
	if u := o.Usage(); u.Cycles != 1 || o.At(o.find(top)).parent != 0 {
		t.Errorf("a link after %d parents: %+v", long, u)
	}
}
