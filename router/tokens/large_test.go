package tokens

import (
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// largeFile returns a tokenizer.json with a vocabulary of realistic size; make check-tokens makes
// that file.
func largeFile(t testing.TB) string {
	t.Helper()
	path := os.Getenv("TOKENS_LARGE")
	if path == "" {
		t.Skip("TOKENS_LARGE is not set: make check-tokens does")
	}
	return path
}

func large(t testing.TB) *Tokenizer {
	t.Helper()
	doc, err := os.ReadFile(largeFile(t))
	if err != nil {
		t.Fatal(err)
	}
	tok, err := Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// corpora returns texts of several kinds: this repository's code and documents, words of many
// scripts, and the most expensive text.
func corpora(t testing.TB) map[string]string {
	t.Helper()
	all := map[string]string{}
	for kind, pattern := range map[string]string{"code": ".go", "prose": ".md"} {
		var b strings.Builder
		err := filepath.WalkDir("../..", func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() && strings.HasPrefix(e.Name(), ".") && e.Name() != ".." {
				return fs.SkipDir
			}
			if !e.IsDir() && strings.HasSuffix(path, pattern) && b.Len() < 1<<20 {
				doc, err := os.ReadFile(path)
				b.Write(doc)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		all[kind] = strings.ToValidUTF8(b.String()[:min(b.Len(), 256<<10)], "")
	}
	r := rand.New(rand.NewPCG(3, 4))
	scripts := [][2]rune{{'а', 'я'}, {'α', 'ω'}, {'א', 'ת'}, {'ا', 'ي'}, {'अ', 'ह'}, {'ก', 'ฮ'}, {'가', '힣'}, {'ぁ', 'ゖ'},
		{'一', '鿆'}, {'a', 'z'}}
	var b strings.Builder
	for b.Len() < 256<<10 {
		s := scripts[r.IntN(len(scripts))]
		for range 1 + r.IntN(9) {
			b.WriteRune(s[0] + r.Int32N(s[1]-s[0]+1))
		}
		b.WriteString([]string{" ", " ", ", ", "\n", "。"}[r.IntN(5)])
	}
	all["random scripts"] = b.String()
	letters := make([]byte, 256<<10)
	for i := range letters {
		letters[i] = byte('a' + r.IntN(26))
	}
	all["one word"], all["one letter"], all["spaces"] = string(letters), strings.Repeat("a", 256<<10),
		strings.Repeat(" ", 256<<10)
	return all
}

// TestLargeVocabulary compares the ids with Hugging Face's for a vocabulary of 128,000 tokens. The
// test also bounds the time and memory of a tokenizer.
func TestLargeVocabulary(t *testing.T) {
	path := largeFile(t)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	tok := large(t)
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("loaded in %v, %.1f MB on the heap, %.1f MB allocated meanwhile", took.Round(time.Millisecond),
		float64(after.HeapAlloc-before.HeapAlloc)/1e6, float64(after.TotalAlloc-before.TotalAlloc)/1e6)
	if held := after.HeapAlloc - before.HeapAlloc; held > 64<<20 {
		t.Errorf("%d bytes on the heap", held)
	}
	h := startHuggingFace(t, path)
	g, r := readGolden(t), rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 30 {
		h.same(t, "large", tok, noises(g, r))
	}
	c := NewCache(8 << 20)
	for kind, text := range corpora(t) {
		h.same(t, "large", tok, []string{text})
		if ids, _, ok := c.Encode(tok, nil, text, 0, false); ok && !slices.Equal(ids, tok.Encode(nil, text, false)) {
			t.Errorf("%s: with chunks the ids are others", kind)
		}
	}
	t.Logf("%d bytes: all ids alike", h.bytes)
}

// BenchmarkLarge measures text of several kinds with a vocabulary of 128,000 tokens.
func BenchmarkLarge(b *testing.B) {
	tok := large(b)
	for kind, text := range corpora(b) {
		b.Run(strings.ReplaceAll(kind, " ", "_"), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			dst := tok.Encode(nil, text, false)
			start := processor(b)
			for b.Loop() {
				dst = tok.Encode(dst[:0], text, false)
			}
			b.ReportMetric(float64(len(text))/float64(len(dst)), "bytes/token")
			b.ReportMetric((processor(b)-start).Seconds()*1e6/float64(b.N)/(float64(len(text))/1024), "cpu-us/KB")
		})
	}
}

// processor returns the CPU time of this process so far.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
