package alias

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

func someSource() Source {
	return Source{Scheme: LMCache, Keys: "key1;resp.0;", Model: "/models/a", DType: "bfloat16", World: 2,
		Halves: true, First: 0x1234, Served: "org/a", Revision: "r1"}
}

func (s Source) space() block.Namespace { return s.Namespace(16) }

func someChunk(blocks int) Chunk {
	c := Chunk{Name: 7, Parent: block.Name{9}}
	for i := range blocks {
		c.Blocks = append(c.Blocks, 1, byte(i), 0, 0, 0, 0, 0, 0)
	}
	return c
}

// TestSource checks that each field separates the namespaces of chunks, and that unusable fields
// are refused.
func TestSource(t *testing.T) {
	s := someSource()
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	spaces := map[string]string{s.Namespace(256).String(): "nothing"}
	for what, change := range map[string]func(*Source){
		"keys": func(s *Source) { s.Keys = "key1;resp.1;" }, "tenant": func(s *Source) { s.Keys = "key1;resp.0;a" },
		"model": func(s *Source) { s.Model = "/models/b" }, "dtype": func(s *Source) { s.DType = "half" },
		"world": func(s *Source) { s.World = 1 }, "layers": func(s *Source) { s.Layers = 32 },
		"halves": func(s *Source) { s.Halves = false }, "seed": func(s *Source) { s.First = 0x4321 },
		"served": func(s *Source) { s.Served = "org/b" }, "revision": func(s *Source) { s.Revision = "r2" },
	} {
		other := someSource()
		change(&other)
		n := other.Namespace(256)
		if err := errors.Join(other.Check(), n.Check()); err != nil || n.Blocks() != 16 {
			t.Errorf("%s: %v", what, err)
		}
		if was, ok := spaces[n.String()]; ok {
			t.Errorf("%s and %s have one namespace %s", what, was, n)
		}
		spaces[n.String()] = what
	}
	for _, scheme := range []Scheme{VLLMTier, HiCache, HiCacheMLA} {
		n := Source{Scheme: scheme, Keys: s.Keys, Model: "m", World: 1, Served: "m", Revision: "-"}.space()
		if of, chunks := SchemeOf(&n); of != scheme || !chunks || of.Derived() {
			t.Errorf("%s: %q %v of %s", scheme, of, chunks, n)
		}
	}
	if n := s.Namespace(256); !strings.HasPrefix(n.Layout, "chunks.lmcache.") {
		t.Error(n.Layout)
	}
	if of, chunks := SchemeOf(&block.Namespace{Layout: "vllm.NHD"}); of != "" || chunks {
		t.Errorf("blocks of a model: %q %v", of, chunks)
	}
	pages := Source{Scheme: HiCache, Keys: s.Keys, Model: "m", World: 1, Served: "m", Revision: "-"}
	engine := Source{Scheme: VLLMTier, Keys: s.Keys, Engine: "e", World: 1, Served: "m", Revision: "-"}
	fp8, other := pages, engine
	fp8.Variant, other.Engine = "fp8", "f"
	if pages.space() == fp8.space() || engine.space() == other.space() {
		t.Error("two variants, or two engines, have one namespace")
	}
	for _, good := range []Source{pages, engine, fp8} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
	for what, change := range map[string]func(*Source){
		"engine":      func(s *Source) { s.Engine, s.Model = "e", "" },
		"both":        func(s *Source) { s.Scheme, s.First, s.Engine = VLLMTier, 0, "e" },
		"first":       func(s *Source) { s.Scheme = HiCache },
		"variant":     func(s *Source) { s.Variant = "fp8" },
		"variant len": func(s *Source) { *s = pages; s.Variant = strings.Repeat("a", MaxVariant+1) },

		"keys": func(s *Source) { s.Keys = "resp.0" }, "no keys": func(s *Source) { s.Keys = s.Namespace(16).String() },
		"model": func(s *Source) { s.Model = "" }, "world": func(s *Source) { s.World = 0 },
		"layers": func(s *Source) { s.Layers = MaxLayers + 1 },
		"served": func(s *Source) { s.Served = "" }, "revision": func(s *Source) { s.Revision = "" },
	} {
		wrong := someSource()
		if change(&wrong); !errors.Is(wrong.Check(), ErrSource) {
			t.Errorf("%s: %v", what, wrong.Check())
		}
	}
}

func TestTokens(t *testing.T) {
	for blocks, want := range map[int]int{0: 0, 1: 16, 16: 256, 32: 512, 33: 0} {
		if c := someChunk(blocks); c.Tokens() != want {
			t.Errorf("%d blocks: %d tokens", blocks, c.Tokens())
		}
	}
	for what, c := range map[string]Chunk{
		"zero": {Blocks: make([]byte, 8)}, "short": {Blocks: make([]byte, 7)},
		"twice":  {Blocks: bytes.Repeat([]byte("12345678"), 2)},
		"parent": {Parent: block.Name([]byte("12345678")), Blocks: []byte("12345678")},
	} {
		if n := c.Tokens(); n != 0 {
			t.Errorf("%s: %d tokens", what, n)
		}
	}
}

// TestNote appends notes to attributes and reads them back.
func TestNote(t *testing.T) {
	for _, attr := range [][]byte{nil, []byte("s3\x01attribute")} {
		for _, blocks := range []int{1, 16, 32} {
			s, c := someSource(), someChunk(blocks)
			k := s.Carrier(c.Name)
			whole := AppendNote(slices.Clone(attr), &s, &c)
			rest, note, ok := CutNote(whole)
			if !ok || !bytes.Equal(rest, attr) {
				t.Fatalf("%q %v", rest, ok)
			}
			s2, c2, ok := ParseNote(note, s.Keys, &k)
			if !ok || s2 != s || c2.Name != c.Name || c2.Parent != c.Parent || !bytes.Equal(c2.Blocks, c.Blocks) {
				t.Errorf("%+v %+v %v", s2, c2, ok)
			}
			if k.Layer = 3; ok {
				if _, _, ok := ParseNote(note, s.Keys, &k); ok {
					t.Error("the note of a key for all layers is read for a layer")
				}
			}
			for i := range whole {
				if _, _, ok := CutNote(whole[:i]); ok {
					t.Errorf("a note in the first %d bytes", i)
				}
			}
		}
	}
	if s, c := someSource(), someChunk(32); len(AppendNote(nil, &s, &c)) > 512 {
		t.Error(len(AppendNote(nil, &s, &c)), "bytes")
	}
}

func FuzzNote(f *testing.F) {
	s, c := someSource(), someChunk(16)
	f.Add(AppendNote([]byte("before"), &s, &c))
	f.Fuzz(func(t *testing.T, attr []byte) {
		rest, note, ok := CutNote(attr)
		if !ok {
			return
		}
		k := s.Carrier(7)
		s, c, ok := ParseNote(note, s.Keys, &k)
		if !ok {
			return
		}
		if got := AppendNote(slices.Clone(rest), &s, &c); !bytes.Equal(got, attr) {
			t.Fatalf("%q comes back as %q", attr, got)
		}
	})
}

// TestNoteOnDisk checks the bytes of a note, which lie on disks.
func TestNoteOnDisk(t *testing.T) {
	s, c := someSource(), someChunk(2)
	s.Layers, s.Variant = 3, "fp8"
	const want = "6265666f726503000000341200000000000009000000000000000300" + "667038" + "0500" + "6f72672f61" +
		"0200" + "7231" + "01000000000000000101000000000000" + "3400" + "63676368756e6b01"
	if got := fmt.Sprintf("%x", AppendNote([]byte("before"), &s, &c)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
