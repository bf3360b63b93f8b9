package events

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/hicache"
)

// withPages makes an engine each of whose blocks is a page of HiCache.
func withPages(t testing.TB, tokens int) *engine {
	e := newEngine(t, 100_000)
	e.known.chunks = newChunker(&Chunks{Source: alias.Source{Scheme: alias.HiCache}, Tokens: tokens}, &e.counts)
	return e
}

// pagesOf returns the pages of a prompt for the base model.
func pagesOf(t *testing.T, hashes []string, tokens []uint32, size int) (all []alias.Chunk) {
	digests, per := chain("", "", tokens), size/block.Tokens
	for i, text := range hashes {
		var h hicache.Hash
		if _, err := hex.Decode(h[:], []byte(text)); err != nil {
			t.Fatal(err)
		}
		c := alias.Chunk{Name: h.Name()}
		if i > 0 {
			c.Parent = block.NameOf(&digests[i*per-1])
		}
		for _, d := range digests[i*per : (i+1)*per] {
			c.Blocks = append(c.Blocks, d[:block.NameBytes]...)
		}
		all = append(all, c)
	}
	return all
}

// TestPagesOfSGLang names pages of token ids from the events that SGLang's own recorder has made of
// them (kv/hicache/testdata/make_pages.py). Pages with a salt and pages of pairs of tokens have no
// names, and neither have pages of one token.
func TestPagesOfSGLang(t *testing.T) {
	var g struct {
		Prompts []struct {
			Name   string
			Size   int `json:"page_size"`
			Tokens []uint32
			Hashes []string
			Batch  []byte
		}
	}
	text, err := os.ReadFile("../hicache/testdata/pages.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil || len(g.Prompts) != 7 {
		t.Fatal(err, len(g.Prompts))
	}
	for _, p := range g.Prompts {
		for _, size := range []int{0, p.Size} {
			e := withPages(t, size)
			e.must(p.Batch)
			var want []alias.Chunk
			switch p.Name {
			case "plain", "plain 16", "plain 128":
				want = pagesOf(t, p.Hashes, p.Tokens, p.Size)
			case "extra key":
				// The events do not say the key. The names are those of the same tokens without it.
				want = pagesOf(t, g.Prompts[0].Hashes, p.Tokens, p.Size)
			}
			e.expectChunks(p.Name, want)
			e.known.chunks.repeat()
			e.expectChunks(p.Name+", told again", want)
		}
	}
}

// TestPagesOfOthers names no pages whose hash or prompt is another's, nor what follows them.
func TestPagesOfOthers(t *testing.T) {
	tokens := count(1, 64)
	one := hicache.Next(hicache.Hash{}, tokens[:32])
	two := hicache.Next(one, tokens[32:])
	hashes := []any{int64(one.Name()), int64(two.Name())}
	names := []string{hex.EncodeToString(one[:]), hex.EncodeToString(two[:])}
	first, second := stores(hashes[:1], nil, tokens[:32], 32, nil), stores(hashes[1:], hashes[0], tokens[32:], 32, nil)
	for what, c := range map[string]struct {
		pages  int
		events []any
	}{
		"both":        {2, []any{stores(hashes, nil, tokens, 32, nil)}},
		"one by one":  {2, []any{first, second}},
		"another":     {1, []any{stores([]any{hashes[0], 7}, nil, tokens, 32, nil)}},
		"after it":    {0, []any{stores([]any{7, hashes[1]}, nil, tokens, 32, nil)}},
		"adapter":     {0, []any{stores(hashes, nil, tokens, 32, fields{"lora_name": "sql"})}},
		"salt":        {0, []any{stores(hashes, nil, tokens, 32, fields{"cache_salt": "s"})}},
		"parent gone": {1, []any{first, removes(hashes[:1], "GPU"), second}},
		"groups":      {0, []any{first, stores(numbers(1, 0, 1), nil, tokens[:32], 32, fields{"group_idx": 1}), second}},
	} {
		e := withPages(t, 0)
		e.must(batchFrom(t, 0, c.events...))
		e.expectChunks(what, pagesOf(t, names[:c.pages], tokens, 32))
	}
}
