package chunks

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
)

// sizes records the lengths that the index is told.
type sizes []int

func (s *sizes) Apply(c *residency.Change) { *s = append(*s, c.Length) }

// TestParts asks for the keys of a real LMCache's chunks by the names of their last blocks, and by
// the second one alone.
func TestParts(t *testing.T) {
	r := record(t)
	s := recorded(&r)
	told := chunksOf(s.First, s.Served, r.Prompt, 256)
	ends := []block.Name{block.Name(told[1].Blocks[120:]), block.Name(told[0].Blocks[120:])}
	space, id := s.Namespace(256).String(), block.IDOf(keySpace)
	var want []block.Digest
	for _, key := range slices.Sorted(slices.Values(r.KeysSeen)) {
		want = append(want, block.OfKey(id, []byte(key)).Digest)
	}
	var lengths sizes
	table := New(Options{Index: &lengths})
	if _, err := table.Tell(&s, told); err != nil {
		t.Fatal(err)
	}
	for _, key := range r.KeysSeen {
		k, err := lmcache.Parse([]byte(key))
		if err != nil {
			t.Fatal(err)
		}
		length := 28
		if k.Half == alias.Second {
			length = 1000
		}
		table.Apply(&Change{Addr: block.OfKey(id, []byte(key)), Namespace: keySpace, Key: []byte(key),
			Tier: residency.Host, Present: true, Length: length})
	}
	if fmt.Sprint(lengths) != "[1000 1000]" {
		t.Errorf("chunks of %v bytes", lengths)
	}
	for _, c := range []struct {
		last   []block.Name
		before int
		found  int
	}{
		{ends, 0, 2}, {ends[:1], 1, 2}, {ends[:1], 9, 2}, {ends[:1], 0, 1}, {ends[1:], 2, 1},
		{[]block.Name{{1}}, 2, 0}, {nil, 2, 0},
	} {
		keys, got, all := table.Parts(space, c.last, c.before)
		if all != c.found || len(got) != 2*c.found || (keys == keySpace) != (c.found > 0) {
			t.Errorf("%+v: %q, %d keys of %d chunks", c, keys, len(got), all)
		}
		for _, digest := range got {
			if !slices.Contains(want, digest) {
				t.Errorf("%+v: a key that LMCache did not store", c)
			}
		}
	}
	if _, got, _ := table.Parts(space, ends, 0); len(got) == 4 {
		first := s.Carrier(told[0].Name)
		if got[0] != block.OfKey(id, lmcache.Append(nil, &first)).Digest {
			t.Error("the prompt's first chunk does not come first")
		}
	}
	if _, got, _ := table.Parts("", ends, 0); got != nil {
		t.Error("keys of no namespace")
	}
	store(table, r.KeysSeen[:1], false)
	if _, _, all := table.Parts(space, ends, 0); all != 1 {
		t.Errorf("%d chunks without one part", all)
	}
}

// TestLengths tells the index the bytes of chunks, also of those whose parts all come first.
func TestLengths(t *testing.T) {
	s, told := sourceOf(1, 0, true), chunkOf(0, 0)
	for _, early := range []bool{false, true} {
		var lengths sizes
		table := New(Options{Index: &lengths})
		for n := range 2 * maxOrigins { // of other models
			key := fmt.Appendf(nil, "%d@1@0@ab@half", n)
			table.Apply(&Change{Addr: block.OfKey(block.IDOf(keySpace), key), Namespace: keySpace, Key: key,
				Tier: residency.Host, Present: true, Length: 7})
		}
		tell := func() {
			if n, err := table.Tell(&s, []alias.Chunk{told}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if early {
			tell()
		}
		for _, k := range keysOf(&s, told.Name) {
			length, key := 1000, lmcache.Append(nil, &k)
			if k.Half == alias.First {
				length = 28
			}
			table.Apply(&Change{Addr: block.OfKey(block.IDOf(keySpace), key), Namespace: keySpace, Key: key,
				Tier: residency.Host, Present: true, Length: length})
		}
		if !early {
			tell()
		}
		if fmt.Sprint(lengths) != "[1000]" || len(table.lengths) != maxOrigins {
			t.Errorf("chunks of %v bytes, %d lengths", lengths, len(table.lengths))
		}
	}
}

// TestLengthsOfTails stores what a prompt has after its last full chunk before that chunk is told,
// and after, and a longer part of which nobody tells.
func TestLengthsOfTails(t *testing.T) {
	s := sourceOf(1, 0, false)
	var lengths sizes
	table := New(Options{Index: &lengths})
	put := func(n, length int) {
		k := s.Carrier(chunkOf(n, 0).Name)
		key := lmcache.Append(nil, &k)
		table.Apply(&Change{Addr: block.OfKey(block.IDOf(keySpace), key), Namespace: keySpace, Key: key,
			Tier: residency.Host, Present: true, Length: length})
	}
	tell := func(n int) {
		if taken, err := table.Tell(&s, []alias.Chunk{chunkOf(n, 0)}); taken != 1 || err != nil {
			t.Fatal(taken, err)
		}
	}
	put(0, 1000)
	put(9, 300)
	tell(0)
	tell(1)
	put(1, 1000)
	put(8, 300)
	put(7, 5000)
	put(2, 1000)
	tell(2)
	if fmt.Sprint(lengths) != "[1000 1000 1000]" {
		t.Errorf("chunks of %v bytes", lengths)
	}
}

// TestSameEnds tells more chunks that end alike than can stand at one place of a hash table. One of
// them is found.
func TestSameEnds(t *testing.T) {
	s := sourceOf(1, 0, false)
	table := New(Options{Index: nothing{}})
	space, last := s.Namespace(2*block.Tokens).String(), []block.Name{block.Name(chunkOf(0, 0).Blocks[8:])}
	put := func(n int, present bool) {
		c := chunkOf(0, 0)
		c.Name = alias.Name(n)
		if _, err := table.Tell(&s, []alias.Chunk{c}); err != nil {
			t.Fatal(err)
		}
		k := s.Carrier(c.Name)
		store(table, []string{string(lmcache.Append(nil, &k))}, present)
	}
	for n := range 2048 {
		put(1+n, true)
	}
	k := s.Carrier(1)
	want := block.OfKey(block.IDOf(keySpace), lmcache.Append(nil, &k)).Digest
	if _, got, _ := table.Parts(space, last, 0); len(got) != 1 || got[0] != want || table.ends.n != 1 {
		t.Errorf("%x, want %x; %d ends", got, want, table.ends.n)
	}
	for n := range 2048 {
		put(1+n, false)
	}
	if st := table.Stats(); st.Counted != 0 || table.ends.n != 0 {
		t.Errorf("%+v, %d ends", st, table.ends.n)
	}
}

// TestPartsAreBounded asks for more keys than an answer has, of three chunks and of one.
func TestPartsAreBounded(t *testing.T) {
	if keys, chunks := partsOfThree(t, sourceOf(16, 512, false)); keys != maxKeys || chunks != 2 {
		t.Errorf("%d keys of %d chunks", keys, chunks)
	}
	if keys, chunks := partsOfThree(t, sourceOf(33, 512, false)); keys != 0 || chunks != 0 {
		t.Errorf("%d keys of %d chunks", keys, chunks)
	}
}

// partsOfThree returns of how many keys and chunks an answer is about three chunks of a source.
func partsOfThree(t *testing.T, s alias.Source) (keys, chunks int) {
	t.Helper()
	table := New(Options{Index: nothing{}})
	var all []alias.Chunk
	var last []block.Name
	for n := range 3 {
		c := chunkOf(n, 0)
		all, last = append(all, c), append([]block.Name{block.Name(c.Blocks[8:])}, last...)
		for _, k := range keysOf(&s, c.Name) {
			key := lmcache.Append(nil, &k)
			table.Apply(&Change{Addr: block.OfKey(block.IDOf(keySpace), key), Namespace: keySpace, Key: key,
				Tier: residency.Host, Present: true})
		}
	}
	if n, err := table.Tell(&s, all); n != 3 || err != nil {
		t.Fatal(n, err)
	}
	_, digests, chunks := table.Parts(s.Namespace(2*block.Tokens).String(), last, 0)
	return len(digests), chunks
}
