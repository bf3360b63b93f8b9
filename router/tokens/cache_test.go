package tokens

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// longText joins texts of the golden file.
func longText(g *golden, r *rand.Rand, size int) string {
	var b strings.Builder
	for b.Len() < size {
		b.WriteString(g.Texts[r.IntN(len(g.Texts))])
		for range r.IntN(20) {
			b.WriteString(paragraph[:r.IntN(100)])
		}
		if r.IntN(2) == 0 {
			b.WriteString([]string{" the cache ", "\nand", "模型，缓存。", " "}[r.IntN(4)])
		}
	}
	return b.String()
}

// TestChunks checks that the ids are the same with and without chunks, and with and without the
// cache.
func TestChunks(t *testing.T) {
	g, r := readGolden(t), rand.New(rand.NewPCG(1, 2))
	c := NewCache(8 << 20)
	for _, name := range slices.Sorted(maps.Keys(g.Variants)) {
		tok := g.tokenizer(t, name)
		known := 0
		for range 40 {
			text := longText(g, r, 12<<10)
			for range 2 {
				want := tok.Encode(nil, text, true)
				got, encoded, _ := c.Encode(tok, nil, text, 0, true)
				if !slices.Equal(got, want) {
					t.Fatalf("%s: with chunks the ids of %q are others", name, text)
				}
				known += len(text) - encoded
				text += longText(g, r, 500)
			}
		}
		if known < 40<<10 {
			t.Errorf("%s: only %d bytes were known", name, known)
		}
	}
}

// TestChunksOfOthers checks that two tokenizers with one cache do not get each other's ids.
func TestChunksOfOthers(t *testing.T) {
	g := readGolden(t)
	c, text := NewCache(1<<20), ""
	for i := range 300 {
		text += fmt.Sprint("Don't cache ", i*12345, " prefills. ")
	}
	for _, name := range []string{"llama3", "qwen", "gpt2"} {
		tok := g.tokenizer(t, name)
		if got, encoded, _ := c.Encode(tok, nil, text, 0, false); !slices.Equal(got, tok.Encode(nil, text, false)) ||
			encoded != len(text) {
			t.Error(name, encoded)
		}
	}
}

// least returns the fewest allocations of f in several measurements. The race detector makes pools
// forget at random.
func least(f func()) float64 {
	n := testing.AllocsPerRun(10, f)
	for range 9 {
		n = min(n, testing.AllocsPerRun(10, f))
	}
	return n
}

func TestEncodeAllocatesNothing(t *testing.T) {
	g := readGolden(t)
	tok, c := g.tokenizer(t, "llama3"), NewCache(1<<20)
	text := strings.Repeat("Don't cache 12345 prefills. "+strings.Repeat("-", 100), 100)
	dst := tok.Encode(nil, text, true)
	if n := least(func() { dst = tok.Encode(dst[:0], text, true) }); n > 8 {
		t.Errorf("%v allocations", n)
	}
	if n := least(func() { dst, _, _ = c.Encode(tok, dst[:0], text, 0, true) }); n > 8 {
		t.Errorf("%v allocations with the cache", n)
	}
}

const paragraph = "The router keeps the cache and the engine keeps the router because the worker is often away.\nIt " +
	"would never ask the model for 12 blocks again; größer, 日本語. def f(self): return {}\n"

func BenchmarkEncode(b *testing.B) {
	g := readGolden(b)
	for _, name := range []string{"gpt2", "llama3", "qwen", "o200k", "deepseek"} {
		tok, text := g.tokenizer(b, name), strings.Repeat(paragraph, 100)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			var dst []uint32
			for b.Loop() {
				dst = tok.Encode(dst[:0], text, true)
			}
		})
	}
}

func BenchmarkKnown(b *testing.B) {
	g := readGolden(b)
	tok, text, c := g.tokenizer(b, "llama3"), strings.Repeat(paragraph, 1200), NewCache(8<<20)
	b.SetBytes(int64(len(text)))
	var dst []uint32
	for b.Loop() {
		dst, _, _ = c.Encode(tok, dst[:0], text, 0, true)
	}
}

// TestLongWords checks that a prompt with a word of more than 4 KiB is not encoded, and that the
// next prompt is.
func TestLongWords(t *testing.T) {
	s := NewSet(map[string]*Model{"m": load(t, readGolden(t), chatML)}, 1<<20, 1<<20)
	for word, want := range map[int]Outcome{maxWord: Exact, maxWord + 1: Large, 20 * maxWord: Large} {
		r := s.Make("m", Completions, []byte(`{"prompt":"the cache. `+strings.Repeat("x", word-1)+`"}`), 0, nil)
		if r.Outcome != want || (len(r.IDs) > 0) != (want == Exact) {
			t.Errorf("%d bytes: %s, %d ids", word, r.Outcome, len(r.IDs))
		}
		if r := s.Make("m", Completions, []byte(`{"prompt":"the cache"}`), 0, nil); r.Outcome != Exact {
			t.Errorf("behind %d bytes: %s", word, r.Outcome)
		}
	}
}

// TestSpaces checks that nobody's text is known sooner because a client of another space has sent
// it.
func TestSpaces(t *testing.T) {
	g := readGolden(t)
	tok, c := g.tokenizer(t, "qwen"), NewCache(8<<20)
	text := longText(g, rand.New(rand.NewPCG(3, 4)), 24<<10)
	for _, space := range []uint64{0, 7, 8} {
		first, encoded, _ := c.Encode(tok, nil, text, space, false)
		if encoded < len(text) {
			t.Errorf("space %d: only %d bytes are encoded", space, encoded)
		}
		again, encoded, _ := c.Encode(tok, nil, text, space, false)
		if encoded > len(text)*3/4 || !slices.Equal(first, again) {
			t.Errorf("space %d: %d bytes are encoded again", space, encoded)
		}
	}
}
