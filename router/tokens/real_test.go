package tokens

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// huggingFace is a Python process with Hugging Face's tokenizers.
type huggingFace struct {
	in      io.WriteCloser
	answers *bufio.Scanner
	bytes   int
}

// startHuggingFace starts the Python named by TOKENS_PYTHON, with the large tokenizer if there is
// one.
func startHuggingFace(t *testing.T, large ...string) *huggingFace {
	t.Helper()
	python := os.Getenv("TOKENS_PYTHON")
	if python == "" {
		t.Skip("TOKENS_PYTHON is not set: make check-tokens does")
	}
	p := exec.Command(python, append([]string{"testdata/real.py", "serve", "testdata"}, large...)...)
	p.Stderr = os.Stderr
	in, err := p.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		p.Wait()
	})
	h := &huggingFace{in: in, answers: bufio.NewScanner(out)}
	h.answers.Buffer(nil, 64<<20)
	return h
}

// same compares the ids of texts with Hugging Face's.
func (h *huggingFace) same(t *testing.T, variant string, tok *Tokenizer, texts []string) {
	t.Helper()
	line, _ := json.Marshal(map[string]any{"variant": variant, "texts": texts})
	if _, err := h.in.Write(append(line, '\n')); err != nil || !h.answers.Scan() {
		t.Fatal("no answer: ", err, h.answers.Err())
	}
	var want [][]uint32
	if err := json.Unmarshal(h.answers.Bytes(), &want); err != nil {
		t.Fatal(err)
	}
	for i, text := range texts {
		if got := tok.Encode(nil, text, false); !slices.Equal(got, want[i]) {
			t.Fatalf("%s: %+q:\n got %v\nwant %v", variant, text, got, want[i])
		}
		h.bytes += len(text)
	}
}

// TestAgainstTokenizers compares with Hugging Face's tokenizers on random texts from all of
// Unicode.
func TestAgainstTokenizers(t *testing.T) {
	h := startHuggingFace(t)
	g, r := readGolden(t), rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, name := range slices.Sorted(maps.Keys(g.Variants)) {
		tok := g.tokenizer(t, name)
		for range 30 {
			h.same(t, name, tok, noises(g, r))
		}
	}
	t.Logf("%d variants, %d bytes: all ids alike", len(g.Variants), h.bytes)
}

func noises(g *golden, r *rand.Rand) []string {
	texts := make([]string, 200)
	for i := range texts {
		texts[i] = noise(g, r)
	}
	return texts
}

// known returns r, or another character if the Unicode tables differ. The package knows letters
// newer than Go's Unicode 15. The package does not know the combining classes of marks that came
// with Unicode 11, from U+07FD on.
func known(r rune) rune {
	if (r < 0x7fd || !unicode.Is(unicode.M, r)) && unicode.In(r, unicode.L, unicode.M, unicode.N, unicode.P, unicode.S,
		unicode.Z, unicode.Cc, unicode.Cf, unicode.Co) {
		return r
	}
	return '.'
}

// noise returns a text of pieces of the golden texts, whitespace and any characters defined in
// Unicode 15.
func noise(g *golden, r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(60) {
		switch r.IntN(6) {
		case 0:
			whole := []rune(g.Texts[r.IntN(len(g.Texts))])
			from := r.IntN(len(whole) + 1)
			b.WriteString(string(whole[from:min(len(whole), from+r.IntN(8))]))
		case 1:
			b.WriteString([]string{" ", "  ", "\n", "\r\n", "\t", " ", "'s", "'LL", "'ſ", "\u3000"}[r.IntN(10)])
		case 2:
			b.WriteRune(rune(r.IntN(128)))
		case 3:
			b.WriteRune(known(rune(r.IntN(0x3100))))
		case 4:
			if c := rune(r.IntN(0x110000)); c < 0xd800 || c > 0xdfff {
				b.WriteRune(known(c))
			}
		default:
			b.WriteString(strings.Repeat(string(rune(33+r.IntN(90))), r.IntN(70)))
		}
	}
	return b.String()
}
