package tokens

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"
)

// golden is the output of real.py.
type golden struct {
	Model    map[string]json.RawMessage `json:"model"`
	Added    json.RawMessage            `json:"added_tokens"`
	Texts    []string
	Variants map[string]struct {
		File    map[string]json.RawMessage
		IDs     [][]uint32
		Special []uint32
	}
}

func readGolden(t testing.TB) *golden {
	t.Helper()
	doc, err := os.ReadFile("testdata/tokenizers.json")
	if err != nil {
		t.Fatal(err)
	}
	g := &golden{}
	if err := json.Unmarshal(doc, g); err != nil {
		t.Fatal(err)
	}
	return g
}

// file returns the tokenizer.json of a variant.
func (g *golden) file(t testing.TB, name string) []byte {
	t.Helper()
	model := maps.Clone(g.Model)
	whole := map[string]any{"version": "1.0", "added_tokens": g.Added, "normalizer": nil, "model": model}
	for member, v := range g.Variants[name].File {
		if member == "ignore_merges" {
			model[member] = v
		} else {
			whole[member] = v
		}
	}
	doc, err := json.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func (g *golden) tokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	tok, err := Parse(g.file(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return tok
}

// TestGolden compares the ids with Hugging Face's tokenizers.
func TestGolden(t *testing.T) {
	g := readGolden(t)
	for _, name := range slices.Sorted(maps.Keys(g.Variants)) {
		t.Run(name, func(t *testing.T) {
			tok, v := g.tokenizer(t, name), g.Variants[name]
			for i, text := range g.Texts {
				if got := tok.Encode(nil, text, false); !slices.Equal(got, v.IDs[i]) {
					t.Errorf("%q:\n got %v\nwant %v", text, got, v.IDs[i])
				}
			}
			if got := tok.Encode(nil, "Hello", true); !slices.Equal(got, v.Special) {
				t.Errorf("with special tokens: got %v, want %v", got, v.Special)
			}
			t.Logf("breaks: %v", tok.breaks)
		})
	}
}
