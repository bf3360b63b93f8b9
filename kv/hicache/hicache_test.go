package hicache

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
)

// golden is testdata/pages.json: what SGLang's own code makes of prompts (testdata/make_pages.py).
type golden struct {
	Prompts []struct {
		Name   string
		Size   int `json:"page_size"`
		Tokens []uint32
		Hashes []string
	}
	Keys []struct {
		Model       string
		Rank, Ranks uint32
		MLA, Halves bool
		Keys        []string
		Beside      []string
	}
}

func readGolden(t testing.TB) (g golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/pages.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil || len(g.Prompts) != 7 || len(g.Keys) != 8 {
		t.Fatal(err, len(g.Prompts), len(g.Keys))
	}
	return g
}

// TestGoldenHashes computes the hashes of pages that SGLang computes from token ids alone. Those of
// a prompt with a salt, with an extra key, or of pairs of tokens are others throughout.
func TestGoldenHashes(t *testing.T) {
	same := 0
	for _, p := range readGolden(t).Prompts {
		var h Hash
		for i, want := range p.Hashes {
			h = Next(h, p.Tokens[i*p.Size:(i+1)*p.Size])
			ok := hex.EncodeToString(h[:]) == want
			if plain := strings.HasPrefix(p.Name, "pl") || p.Name == "page of 1"; plain != ok {
				t.Errorf("%s: page %d is %x, SGLang says %s", p.Name, i, h, want)
			} else if ok {
				same++
			}
		}
	}
	if same != 4+16+2+32 {
		t.Errorf("%d pages are the same", same)
	}
}

// TestGoldenKeys reads the keys of HiCacheNixl, and those of what models keep besides pages.
func TestGoldenKeys(t *testing.T) {
	beside, perhaps := 0, 0
	for _, g := range readGolden(t).Keys {
		for i, key := range g.Keys {
			want := alias.Key{Scheme: alias.HiCache, Model: Model(g.Model), World: g.Ranks, Worker: g.Rank,
				Layer: alias.NoLayer, Name: 0xcc728666a5bc5340}
			if g.MLA {
				want.Scheme = alias.HiCacheMLA
			}
			if g.Halves {
				want.Half = [...]alias.Half{alias.First, alias.Second}[i]
			}
			if k, err := Parse([]byte(key)); err != nil || k != want || k.Carries() != (g.Rank == 0 && i == 0) {
				t.Errorf("%s: %+v %v, want %+v", key, k, err, want)
			}
		}
		for _, key := range g.Beside {
			beside++
			k, err := Parse([]byte(key))
			if err == nil {
				perhaps++
				if k.Model, _ = Beside(&k); k.Model != "" {
					err = ErrBeside
				}
			}
			if !errors.Is(err, ErrBeside) || k.Model != Model(g.Model) {
				t.Errorf("%s: %+v %v", key, k, err)
			}
		}
	}
	if beside < 100 || perhaps != 6*2 { // six pools with MLA, as a whole and with _k
		t.Errorf("%d objects besides pages, of which %d may be pages", beside, perhaps)
	}
}

// TestModelsNamedLikePools reads pages of models whose names have the name of a pool.
func TestModelsNamedLikePools(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for key, besides := range map[string]string{
		"x_deepseek_v4_flash": "", "deepseek_v4_flash_k": "", "x_deepseek_v4_c4_flash_0_2_v": "", "x_mamba": "",
		"x_mamba_k": "", "x_draft_0_1": "", "x_swa_1_2_k": "", "draft": "", "x_draft": "x", "x_swa_k": "x",
		"y_x_indexer": "y_x", "x_draft_2": "x",
	} {
		k, err := Parse([]byte(hash + "_" + key))
		if model, ok := Beside(&k); err != nil || ok != (besides != "") || ok && model != besides {
			t.Errorf("%s: %+v %v, besides pages of %q", key, k, err, model)
		}
		if model, _ := cutHalf(key); besides != "" && k.Model != model {
			t.Errorf("%s: %+v", key, k)
		}
	}
}

// TestOtherKeys refuses keys that are nearly of SGLang's form, and leaves those of others alone.
func TestOtherKeys(t *testing.T) {
	hash := strings.Repeat("0a", 32)
	for key, want := range map[string]error{
		"": alias.ErrOther, hash: alias.ErrOther, hash + "_": alias.ErrOther, "m@1@0@ab@half": alias.ErrOther,
		hash[1:] + "_m_0_1": alias.ErrOther, strings.ToUpper(hash) + "_m_0_1": alias.ErrOther,
		hash + "-m_0_1": alias.ErrOther, strings.Repeat("0g", 32) + "_m_0_1": alias.ErrOther,
		hash + "_m/n_0_1":                              alias.ErrForm,
		hash + "_ukv1-0123456789abcdef_L0-32_H0":       alias.ErrForm,
		hash + "_" + strings.Repeat("m", 513) + "_0_1": alias.ErrForm,
		hash + "__0_1":                                 alias.ErrForm,
		hash + "_m_v":                                  alias.ErrForm, // with MLA there is no half of values
		hash + "_m_1_1_v":                              alias.ErrForm,
		hash + "_m_00_1_v":                             alias.ErrForm,
	} {
		if k, err := Parse([]byte(key)); !errors.Is(err, want) || k != (alias.Key{}) {
			t.Errorf("%.90s: %+v %v, want %v", key, k, err, want)
		}
	}
}

// TestCheck refuses sources with which no page fits.
func TestCheck(t *testing.T) {
	good := alias.Source{Scheme: alias.HiCache, Keys: "key1;s3.b;", Model: "org-m", World: 2, Halves: true,
		Variant: "bfloat16", Served: "org/m", Revision: "-"}
	if err := Check(&good); err != nil || good.Parts() != 4 {
		t.Error(err, good.Parts())
	}
	for what, change := range map[string]func(s *alias.Source){
		"dtype": func(s *alias.Source) { s.DType = "half" }, "layers": func(s *alias.Source) { s.Layers = 2 },
		"mla":   func(s *alias.Source) { s.Scheme = alias.HiCacheMLA },
		"model": func(s *alias.Source) { s.Model = "a/b" },
		"world": func(s *alias.Source) { s.World = 0 },
		"first": func(s *alias.Source) { s.First = 1 },
	} {
		s := good
		if change(&s); !errors.Is(Check(&s), alias.ErrSource) {
			t.Errorf("%s: %v", what, Check(&s))
		}
	}
	good.Scheme, good.World = alias.HiCacheMLA, 1
	if err := Check(&good); err != nil || good.Parts() != 1 {
		t.Error(err, good.Parts())
	}
}

func FuzzParse(f *testing.F) {
	for _, end := range []string{"_m_0_1", "_m_0_1_k", "_m_k", "_m_0_2_mamba_conv_1"} {
		f.Add([]byte(strings.Repeat("0a", 32) + end))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		k, err := Parse(key)
		if err == nil && (k.Worker >= k.World || k.World > alias.MaxWorkers || k.Model == "") {
			t.Errorf("%q: %+v", key, k)
		}
	})
}

func TestNextDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 64)
	if n := testing.AllocsPerRun(100, func() { Next(Hash{1}, tokens) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}
