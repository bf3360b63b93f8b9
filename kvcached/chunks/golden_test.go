package chunks

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"os"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
)

// recording is a real prompt, and the keys under which LMCache stored its chunks.
type recording struct {
	Config struct {
		Seed string `json:"PYTHONHASHSEED"`
	}
	Prompt   []uint32
	KeysSeen []string `json:"keys_seen"`
}

func record(t *testing.T) (r recording) {
	t.Helper()
	text, err := os.ReadFile("../../kv/lmcache/testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || len(r.KeysSeen) != 4 {
		t.Fatal(err, len(r.KeysSeen))
	}
	return r
}

// recorded is the source of the recording's keys.
func recorded(r *recording) alias.Source {
	return alias.Source{Scheme: alias.LMCache, Keys: keySpace, Model: "MODEL", DType: "float", World: 1, Halves: true,
		First: lmcache.First(r.Config.Seed), Served: "tiny", Revision: "-"}
}

// chunksOf returns what a teller says of a prompt's full chunks.
func chunksOf(first alias.Name, served string, tokens []uint32, size int) (all []alias.Chunk) {
	d, parent := block.Seed(served, "", ""), block.Name{}
	for ; len(tokens) >= size; tokens = tokens[size:] {
		first = lmcache.Next(first, tokens[:size])
		c := alias.Chunk{Name: first, Parent: parent}
		for i := 0; i < size; i += block.Tokens {
			d = block.Next(d, (*[block.Tokens]uint32)(tokens[i:]))
			parent = block.NameOf(&d)
			c.Blocks = append(c.Blocks, parent[:]...)
		}
		all = append(all, c)
	}
	return all
}

// positions returns the positions of the blocks that routers learn of, by the blocks' names.
func positions(t *testing.T, x *residency.Index) map[block.Name]uint32 {
	t.Helper()
	all := map[block.Name]uint32{}
	w := x.Watch(residency.WatchOptions{})
	defer w.Close()
	for b := (residency.Batch{}); b.Part != residency.Synced; {
		if err := w.Next(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
		for _, k := range b.Blocks {
			if k.Tiers&residency.Host != 0 {
				all[k.Name] = k.Position
			}
		}
	}
	return all
}

// store brings the recorded keys to RAM, or takes them away.
func store(x *Table, keys []string, present bool) {
	for _, key := range keys {
		x.Apply(&Change{Addr: block.OfKey(block.IDOf(keySpace), []byte(key)), Namespace: keySpace, Key: []byte(key),
			Tier: residency.Host, Present: present})
	}
}

// TestRecorded tells a real LMCache's chunks. Its 32 blocks count in their places in the prompt,
// and go with any of the parts.
func TestRecorded(t *testing.T) {
	r := record(t)
	s := recorded(&r)
	told := chunksOf(s.First, s.Served, r.Prompt, 256)
	d, want := block.Seed(s.Served, "", ""), map[block.Name]uint32{}
	for i := range 32 {
		d = block.Next(d, (*[block.Tokens]uint32)(r.Prompt[16*i:]))
		want[block.NameOf(&d)] = uint32(1 + i)
	}
	for _, early := range []bool{true, false} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		if !early {
			store(table, r.KeysSeen, true)
		}
		if n, err := table.Tell(&s, told); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		if early {
			store(table, r.KeysSeen, true)
		}
		if got := positions(t, x); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("blocks %v, want %v", got, want)
		}
		for i, key := range r.KeysSeen {
			store(table, []string{key}, false)
			if got, want := len(positions(t, x)), 16; i < 2 && got != want || i >= 2 && got != 0 {
				t.Errorf("%d blocks without %s", got, key)
			}
		}
	}
}

// TestFaults plants a fault in each part of the mapping. Nothing counts then.
func TestFaults(t *testing.T) {
	r := record(t)
	for what, plant := range map[string]func(s *alias.Source, size *int){
		"seed":     func(s *alias.Source, _ *int) { s.First = lmcache.First("1") },
		"size":     func(_ *alias.Source, size *int) { *size = 128 },
		"dtype":    func(s *alias.Source, _ *int) { s.DType = "bfloat16" },
		"model":    func(s *alias.Source, _ *int) { s.Model = "tiny" },
		"workers":  func(s *alias.Source, _ *int) { s.World = 2 },
		"layers":   func(s *alias.Source, _ *int) { s.Layers = 2 },
		"halves":   func(s *alias.Source, _ *int) { s.Halves = false },
		"database": func(s *alias.Source, _ *int) { s.Keys = "key1;resp.1;" },
		"tenant":   func(s *alias.Source, _ *int) { s.Keys = "key1;resp.0;a" },
	} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		s, size := recorded(&r), 256
		plant(&s, &size)
		if n, err := table.Tell(&s, chunksOf(s.First, s.Served, r.Prompt, size)); n != 512/size || err != nil {
			t.Errorf("%s: %d %v", what, n, err)
		}
		store(table, r.KeysSeen, true)
		if st := table.Stats(); len(positions(t, x)) != 0 || st.Counted != 0 || st.Untold != 2 {
			t.Errorf("%s: %d blocks count, %+v", what, len(positions(t, x)), st)
		}
	}
	// Sources that differ in what no key says contradict each other.
	for what, plant := range map[string]func(s *alias.Source){
		"revision": func(s *alias.Source) { s.Revision = "2" },
		"served":   func(s *alias.Source) { s.Served = "other" },
		"nothing":  func(*alias.Source) {},
	} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		store(table, r.KeysSeen, true)
		s, other := recorded(&r), recorded(&r)
		plant(&other)
		for _, from := range []alias.Source{s, other} {
			if _, err := table.Tell(&from, chunksOf(from.First, from.Served, r.Prompt, 256)); err != nil {
				t.Error(err)
			}
		}
		st, got := table.Stats(), len(positions(t, x))
		if what == "nothing" {
			if got != 32 {
				t.Errorf("%d blocks count", got)
			}
		} else if got != 0 || st.Disputed != 2 || st.Refused != 2 {
			t.Errorf("%s: %d blocks count, %+v", what, got, st)
		}
		store(table, r.KeysSeen, false) // the contradiction ends with the parts
		if _, err := table.Tell(&s, chunksOf(s.First, s.Served, r.Prompt, 256)); err != nil {
			t.Error(err)
		}
		store(table, r.KeysSeen, true)
		if got := len(positions(t, x)); got != 32 {
			t.Errorf("%s: %d blocks count afterwards", what, got)
		}
	}
}

// TestReasons checks that keys that do not count are counted by reason.
func TestReasons(t *testing.T) {
	table := New(Options{Index: index{}, MaxParts: 2})
	store(table, []string{"greeting", "m@1@0@ab@half@user%7", "m@00000000@0@da520ea684b06c79f0bb88a8db749b45",
		"m@1@0@a@half",
		"m@1@0@a@half", "m@1@0@b@half", "m@1@0@c@half"}, true)
	s := alias.Source{Scheme: alias.LMCache, Keys: keySpace, Model: "m", DType: "half", World: 1, Served: "m",
		Revision: "-"}
	if _, err := table.Tell(&alias.Source{}, nil); err == nil {
		t.Error("an empty source is taken")
	}
	for _, all := range [][]alias.Chunk{{{Name: 0xa}}, {chunkOf(0, 0), {Name: 0xb, Blocks: make([]byte, 8)}}} {
		if _, err := table.Tell(&s, all); err != nil {
			t.Error(err)
		}
	}
	want := Stats{Parts: 2, Untold: 2, Idle: 1, Forms: 1, Tags: 1, Full: 1, Refused: 2}
	if got := table.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestBounds tells more chunks than the Table keeps, of more origins than it keeps.
func TestBounds(t *testing.T) {
	table := New(Options{Index: index{}})
	s := sourceOf(1, 0, true)
	for n := range maxIdle + 10 {
		c := chunkOf(0, 0)
		c.Name = alias.Name(n)
		if taken, err := table.Tell(&s, []alias.Chunk{c}); taken != 1 || err != nil {
			t.Fatal(n, taken, err)
		}
	}
	if st := table.Stats(); st.Idle != maxIdle || table.byID.n != maxIdle || table.chunks.used > maxIdle+1 {
		t.Errorf("%+v %d", st, table.chunks.used)
	}
	family := maphash.Comparable(table.seed, *familyOf(&s))
	_, _, gone := table.find(table.id(family, 9))
	_, _, here := table.find(table.id(family, 10))
	if gone || !here {
		t.Error("the oldest chunks are not those that went")
	}
	for n := range 2 * maxOrigins {
		s.Model = fmt.Sprint("model ", n)
		_, _ = table.Tell(&s, []alias.Chunk{chunkOf(0, 0)})
	}
	if n := len(table.origins.byKey); n != maxOrigins || table.Stats().Refused != maxOrigins+1 {
		t.Errorf("%d origins, %+v", n, table.Stats())
	}
}

// BenchmarkApply measures the store's callback: for parts of a chunk that counts, and for objects
// of other clients.
func BenchmarkApply(b *testing.B) {
	for _, key := range []string{"/models/m@1@0@64@bfloat16metadata", "greeting"} {
		b.Run(key, func(b *testing.B) {
			table := New(Options{Index: residency.New(residency.Options{})})
			s, c := sourceOf(1, 0, true), chunkOf(0, 0)
			if _, err := table.Tell(&s, []alias.Chunk{c}); err != nil {
				b.Fatal(err)
			}
			store(table, []string{"/models/m@1@0@64@bfloat16kv_bytes"}, true)
			table.take()
			change := Change{Addr: block.OfKey(block.IDOf(keySpace), []byte(key)), Namespace: keySpace,
				Key:  []byte(key),
				Tier: residency.Host}
			b.ReportAllocs()
			for b.Loop() {
				change.Present = !change.Present
				table.Apply(&change)
				table.pending = table.pending[:0]
			}
		})
	}
}
