package chunks

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
	"github.com/cognitora/dataplane/kv/residency"
)

// sglangPrompt is a prompt of testdata/pages.json of kv/hicache, which SGLang's own code made.
type sglangPrompt struct {
	Name   string
	Size   int `json:"page_size"`
	Tokens []uint32
	Hashes []string
}

func sglangPrompts(t testing.TB) map[string]sglangPrompt {
	t.Helper()
	var g struct{ Prompts []sglangPrompt }
	text, err := os.ReadFile("../../kv/hicache/testdata/pages.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]sglangPrompt{}
	for _, p := range g.Prompts {
		all[p.Name] = p
	}
	return all
}

// pagesOf returns what a teller says of a prompt's full pages.
func pagesOf(served string, tokens []uint32, size int) (all []alias.Chunk) {
	d, h, parent := block.Seed(served, "", ""), hicache.Hash{}, block.Name{}
	for ; len(tokens) >= size; tokens = tokens[size:] {
		h = hicache.Next(h, tokens[:size])
		c := alias.Chunk{Name: h.Name(), Parent: parent}
		for i := 0; i < size; i += block.Tokens {
			d = block.Next(d, (*[block.Tokens]uint32)(tokens[i:]))
			parent = block.NameOf(&d)
			c.Blocks = append(c.Blocks, parent[:]...)
		}
		all = append(all, c)
	}
	return all
}

// sglang is the source of an SGLang with two ranks and the memory layout page_first.
func sglang() alias.Source {
	return alias.Source{Scheme: alias.HiCache, Keys: bucket, Model: "org-m", World: 2, Halves: true,
		Variant: "bfloat16", Served: "m", Revision: "-"}
}

// pageKeys are the keys of a prompt's pages in the source's form.
func pageKeys(p sglangPrompt) (keys []string) {
	for _, h := range p.Hashes {
		for rank := range 2 {
			keys = append(keys, fmt.Sprintf("%s_org-m_%d_2_k", h, rank), fmt.Sprintf("%s_org-m_%d_2_v", h, rank))
		}
	}
	return keys
}

func storePages(x *Table, keys []string, present bool) {
	for _, key := range keys {
		x.Apply(tierChange([]byte(key), nil, residency.Host, present))
	}
}

// TestPages counts SGLang's pages once all ranks' keys and values are here, told before or after,
// and no longer when one of them has gone. They count again after a restart, by their notes.
func TestPages(t *testing.T) {
	p := sglangPrompts(t)["plain"]
	s, keys := sglang(), pageKeys(p)
	d, want := block.Seed("m", "", ""), map[block.Name]uint32{}
	for i := range len(p.Tokens) / block.Tokens {
		d = block.Next(d, (*[block.Tokens]uint32)(p.Tokens[16*i:]))
		want[block.NameOf(&d)] = uint32(1 + i)
	}
	for _, early := range []bool{true, false} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		if !early {
			storePages(table, keys, true)
		}
		if n, err := table.Tell(&s, pagesOf("m", p.Tokens, 64)); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		if early {
			storePages(table, keys, true)
		}
		if got := positions(t, x); !maps.Equal(got, want) {
			t.Errorf("blocks %v, want %v", got, want)
		}
		after := New(Options{Index: index{}})
		notes := map[block.Addr][]byte{}
		for _, a := range table.take() {
			notes[a] = table.note(&a, nil)
		}
		for _, key := range keys {
			note := notes[block.OfKey(block.IDOf(bucket), []byte(key))]
			after.Apply(tierChange([]byte(key), note, residency.Disk, true))
		}
		if st := after.Stats(); st.Counted != 4 || st.Notes != 0 || len(notes) != 4 {
			t.Errorf("after a restart with %d notes: %+v", len(notes), st)
		}
		storePages(table, keys[13:14], false) // the values of rank 0 of the last page
		if st := table.Stats(); len(positions(t, x)) != 12 || st.Incomplete != 1 {
			t.Errorf("%d blocks count without a part, %+v", len(positions(t, x)), st)
		}
	}
}

// TestPageFaults plants a fault in each part of the mapping of SGLang's pages. Nothing counts then.
// SGLang's extra key is a client's, an adapter's id, or both.
func TestPageFaults(t *testing.T) {
	prompts := sglangPrompts(t)
	for what, plant := range map[string]func(s *alias.Source, size *int, stored *sglangPrompt){
		"salt":      func(_ *alias.Source, _ *int, p *sglangPrompt) { *p = prompts["salt"] },
		"extra key": func(_ *alias.Source, _ *int, p *sglangPrompt) { *p = prompts["extra key"] },
		"pairs":     func(_ *alias.Source, _ *int, p *sglangPrompt) { *p = prompts["eagle"] },
		"size":      func(_ *alias.Source, size *int, _ *sglangPrompt) { *size = 128 },
		"page size": func(_ *alias.Source, _ *int, p *sglangPrompt) { *p = prompts["plain 16"] },
		"model":     func(s *alias.Source, _ *int, _ *sglangPrompt) { s.Model = "m" },
		"ranks":     func(s *alias.Source, _ *int, _ *sglangPrompt) { s.World = 1 },
		"halves":    func(s *alias.Source, _ *int, _ *sglangPrompt) { s.Halves = false },
		"mla":       func(s *alias.Source, _ *int, _ *sglangPrompt) { s.Scheme, s.World = alias.HiCacheMLA, 1 },
		"bucket":    func(s *alias.Source, _ *int, _ *sglangPrompt) { s.Keys = "key1;s3.other;" },
		"tenant":    func(s *alias.Source, _ *int, _ *sglangPrompt) { s.Keys = "key1;s3.kvcache;a" },
	} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		s, size, stored := sglang(), 64, prompts["plain"]
		plant(&s, &size, &stored)
		if n, err := table.Tell(&s, pagesOf("m", prompts["plain"].Tokens, size)); n != 256/size || err != nil {
			t.Errorf("%s: %d %v", what, n, err)
		}
		storePages(table, pageKeys(stored), true)
		if st := table.Stats(); len(positions(t, x)) != 0 || st.Counted != 0 || st.Untold != len(stored.Hashes) {
			t.Errorf("%s: %d blocks count, %+v", what, len(positions(t, x)), st)
		}
	}
	contradict(t, sglang(), pagesOf("m", prompts["plain"].Tokens, 64), func(x *Table, present bool) {
		storePages(x, pageKeys(prompts["plain"]), present)
	}, map[string]func(s *alias.Source){
		"revision":  func(s *alias.Source) { s.Revision = "2" },
		"data type": func(s *alias.Source) { s.Variant = "fp8_e4m3" },
		"served":    func(s *alias.Source) { s.Served = "other" },
	})
}

// contradict tells of chunks, that are stored, from a source and from a changed one. Nothing counts
// then, until all parts have gone.
func contradict(t *testing.T, s alias.Source, told []alias.Chunk, storeAll func(x *Table, present bool),
	changes map[string]func(s *alias.Source)) {
	t.Helper()
	for what, change := range changes {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		if s.Scheme == alias.VLLMTier {
			table.Asked(s.Engine, bucket, tierKey("0123456789ab", 0))
		}
		storeAll(table, true)
		other := s
		change(&other)
		for i, from := range []*alias.Source{&s, &other} {
			if n, err := table.Tell(from, told); err != nil || n != (1-i)*len(told) {
				t.Errorf("%s: %d taken, %v", what, n, err)
			}
		}
		st, blocks := table.Stats(), len(positions(t, x))
		if blocks != 0 || st.Disputed != len(told) || st.Refused != uint64(len(told)) {
			t.Errorf("%s: %d blocks count, %+v", what, blocks, st)
		}
		storeAll(table, false)
		if _, err := table.Tell(&s, told); err != nil {
			t.Error(err)
		}
		storeAll(table, true)
		if st := table.Stats(); st.Counted != len(told) {
			t.Errorf("%s: afterwards %+v", what, st)
		}
	}
}

// TestBeside counts no pages of a model that keeps more than pages, whichever comes first.
func TestBeside(t *testing.T) {
	p := sglangPrompts(t)["plain"]
	s, told := sglang(), pagesOf("m", p.Tokens, 64)
	mamba := []string{p.Hashes[3] + "_org-m_0_2_mamba_temporal"}
	for _, first := range []bool{true, false} {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		if first {
			storePages(table, mamba, true)
		}
		storePages(table, pageKeys(p), true)
		if _, err := table.Tell(&s, told); err != nil {
			t.Fatal(err)
		}
		if st := table.Stats(); (st.Counted == 0) != first {
			t.Errorf("%+v", st)
		}
		if !first {
			storePages(table, mamba, true)
		}
		if st := table.Stats(); len(positions(t, x)) != 0 || st.Incomplete != 4 || st.Beside != 1 {
			t.Errorf("%d blocks count, %+v", len(positions(t, x)), st)
		}
	}
}

// TestBesideIsBounded stores objects of more models and in more namespaces than the table knows,
// before pages count and after. Pages of other namespaces count throughout.
func TestBesideIsBounded(t *testing.T) {
	p := sglangPrompts(t)["plain"]
	s, told := sglang(), pagesOf("m", p.Tokens, 64)
	store := func(x *Table, keys string, model int) {
		key := fmt.Appendf(nil, "%s_m%d_0_1_swa", p.Hashes[0], model)
		x.Apply(&Change{Addr: block.OfKey(block.IDOf(keys), key), Namespace: keys, Key: key, Tier: residency.Host,
			Present: true})
	}
	for _, first := range []bool{true, false} {
		table := New(Options{Index: index{}})
		many := func(keys string) {
			for n := range 2 * maxBeside {
				store(table, keys, n)
			}
		}
		for n := range 2 * maxOrigins {
			store(table, fmt.Sprintf("key1;s3.b%d;", n), 0)
		}
		many("key1;s3.other;")
		if first {
			many(bucket)
		}
		storePages(table, pageKeys(p), true)
		if _, err := table.Tell(&s, told); err != nil {
			t.Fatal(err)
		}
		if st := table.Stats(); (st.Counted == 4) == first {
			t.Errorf("%+v", st)
		}
		many("key1;s3.another;")
		if st := table.Stats(); (st.Counted == 4) == first || len(table.beside) != maxOrigins {
			t.Errorf("%+v, %d namespaces", st, len(table.beside))
		}
		many(bucket)
		if st := table.Stats(); st.Counted != 0 || st.Incomplete != 4 || len(table.beside[bucket]) != maxBeside {
			t.Errorf("%+v, %d models", st, len(table.beside[bucket]))
		}
	}
}

// TestPageOfMLA counts a page of a model with MLA, which is one object, of keys alone or whole.
func TestPageOfMLA(t *testing.T) {
	p := sglangPrompts(t)["plain"]
	for half, halves := range map[string]bool{"_k": true, "": false} {
		s := sglang()
		s.Scheme, s.World, s.Halves = alias.HiCacheMLA, 1, halves
		table := New(Options{Index: index{}})
		if n, err := table.Tell(&s, pagesOf("m", p.Tokens, 64)); n != 4 || err != nil {
			t.Fatal(n, err)
		}
		for i, h := range p.Hashes {
			storePages(table, []string{h + "_org-m" + half}, true)
			if st := table.Stats(); st.Counted != i+1 {
				t.Errorf("halves %t: %+v", halves, st)
			}
		}
	}
}

// TestModelNamedLikePool counts pages of a model with MLA whose name ends like a pool, once pages
// of it are told. Before, the objects are taken for what another model keeps besides pages.
func TestModelNamedLikePool(t *testing.T) {
	p := sglangPrompts(t)["plain"]
	s := sglang()
	s.Scheme, s.World, s.Halves, s.Model = alias.HiCacheMLA, 1, false, "org-m_draft"
	table := New(Options{Index: index{}})
	keys := []string{p.Hashes[0] + "_org-m_draft"}
	storePages(table, keys, true)
	if st := table.Stats(); st.Beside != 1 || st.Parts != 0 {
		t.Errorf("untold: %+v", st)
	}
	if n, err := table.Tell(&s, pagesOf("m", p.Tokens, 64)); n != 4 || err != nil {
		t.Fatal(n, err)
	}
	storePages(table, keys, true)
	if st := table.Stats(); st.Beside != 1 || st.Counted != 1 {
		t.Errorf("told: %+v", st)
	}
	notes := table.take()
	after := New(Options{Index: index{}})
	after.Apply(tierChange([]byte(keys[0]), table.note(&notes[0], nil), residency.Disk, true))
	if st := after.Stats(); st.Beside != 0 || st.Counted != 1 {
		t.Errorf("after a restart: %+v", st)
	}
}
