package chunks

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
)

// TestHashTables puts entries into both tables and takes them away, and compares the tables with
// maps. Most keys belong at few slots, many of them at the end of a shard.
func TestHashTables(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		table := New(Options{Index: nothing{}})
		key := func() uint64 {
			hash, shard := uint64(math.MaxUint32-r.IntN(60)), uint64(r.IntN(2))
			switch r.IntN(4) {
			case 0:
				hash = uint64(r.Uint32())
			case 1:
				hash = uint64(r.IntN(10)) << 28
			}
			return shard<<56 | hash<<24 | uint64(r.IntN(4))
		}
		ids, parts := map[uint64]ref{}, map[uint64]part{}
		for range 3000 {
			id := key()
			if _, c, known := table.find(id); known != (ids[id] != 0) || known && c != ids[id] {
				t.Fatalf("%x: %x %t, want %x", id, c, known, ids[id])
			} else if !known {
				ids[id] = table.enter(id, true)
			} else {
				table.leave(c)
				delete(ids, id)
			}
			k := key() &^ (1<<24 - 1) // all that a part has
			if at, known := findPart(&table.parts, k); known != (parts[k] != 0) || known && at.get() != parts[k] {
				t.Fatalf("%x: %t, want %x", k, known, parts[k])
			} else if !known {
				parts[k] = partOf(k, ref(1+r.IntN(1<<30-1)))
				parts[k] = parts[k].with(residency.Host)
				table.parts.put(k, parts[k])
			} else if parts[k].tiers() == residency.Host {
				parts[k] = parts[k].with(anyTier)
				at.set(parts[k])
			} else {
				table.parts.cut(at)
				delete(parts, k)
			}
		}
		if table.byID.n != len(ids) || table.parts.n != len(parts) {
			t.Errorf("%d and %d entries, want %d and %d", table.byID.n, table.parts.n, len(ids), len(parts))
		}
		for id, c := range ids {
			if _, got, known := table.find(id); !known || got != c || table.key(c) != id {
				t.Errorf("%x: %x %t, want %x", id, got, known, c)
			}
		}
		for _, k := range slices.Collect(maps.Keys(parts)) {
			at, known := findPart(&table.parts, k)
			if !known || at.get() != parts[k] {
				t.Errorf("%x: %t, want %x", k, known, parts[k])
			}
			table.parts.cut(at)
		}
		for i := range table.parts.shards {
			for _, p := range table.parts.shards[i].slots {
				if p != 0 {
					t.Errorf("%x is left", p)
				}
			}
		}
	}
}

// TestSameHash checks that an object whose address has the hash of a part's does not count, and
// that another one with the name of a chunk of one part ends its counting.
func TestSameHash(t *testing.T) {
	x := index{}
	table := New(Options{Index: x})
	s := sourceOf(1, 0, false)
	for n := range 3 {
		if _, err := table.Tell(&s, []alias.Chunk{chunkOf(n, 0)}); err != nil {
			t.Fatal(err)
		}
	}
	change := func(n, at int) *Change {
		key := keysOf(&s, chunkOf(n, 0).Name)[0]
		is := keysOf(&s, chunkOf(at, 0).Name)[0]
		return &Change{Addr: block.OfKey(block.IDOf(keySpace), lmcache.Append(nil, &is)), Namespace: keySpace,
			Key: lmcache.Append(nil, &key), Tier: residency.Host, Present: true}
	}
	table.Apply(change(0, 0))
	table.Apply(change(1, 0)) // another chunk's part under the same address stands for the same hash
	if st := table.Stats(); st.Full != 1 || st.Counted != 1 || len(x) != 1 {
		t.Errorf("%+v %v", st, x)
	}
	table.Apply(change(0, 2))
	if st := table.Stats(); st.Full != 2 || st.Counted != 0 || st.Disputed != 1 || len(x) != 0 {
		t.Errorf("%+v %v", st, x)
	}
}
