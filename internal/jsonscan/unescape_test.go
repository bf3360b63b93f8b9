package jsonscan

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/cpu"
)

// TestStringsOfEveryMake compares long strings with encoding/json. The strings consist of pieces
// that are difficult for a decoder of many bytes at once.
func TestStringsOfEveryMake(t *testing.T) {
	pieces := []string{
		"plain text that is longer than a register of 32 bytes", "x", "é", "日本", "\U0001F600",
		"\\n", "\\\"", "\\\\", "\\/", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\xff",
		"\xc0\xaf", "\xe2\x82", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf0\x80\x80\x80", "\x80", "\\x", "\x01", "\t",
	}
	good := len(pieces) - 10
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 10_000 {
		var b strings.Builder
		b.WriteByte('"')
		for range random.IntN(40) {
			from := good
			if random.IntN(100) == 0 {
				from = len(pieces)
			}
			b.WriteString(pieces[random.IntN(from)])
		}
		b.WriteString(`"` + strings.Repeat(" ", random.IntN(80)))
		agrees(t, []byte(b.String()))
	}
}

// TestLongStringsCrossWindows places two characters at every offset near the end of a window.
func TestLongStringsCrossWindows(t *testing.T) {
	for at := 65536 - 80; at < 65536+80; at++ {
		for _, piece := range []string{"日", "\\n", "\\u00e9", "\U0001F600", "\xe2\x82", "\""} {
			agrees(t, []byte(`"`+strings.Repeat("a", at)+piece+strings.Repeat("b", 100)+`"`))
		}
	}
}

func agrees(t *testing.T, doc []byte) {
	t.Helper()
	c := New(doc)
	got := c.AppendString([]byte("before"))
	c.End()
	var want string
	err := json.Unmarshal(doc, &want)
	if !utf8.Valid(doc) { // encoding/json replaces invalid UTF-8
		err = c.Err()
		if err == nil {
			t.Fatalf("%q: accepted", doc)
		}
	}
	if (err == nil) != (c.Err() == nil) {
		t.Fatalf("%q: got %v, encoding/json says %v", doc, c.Err(), err)
	}
	if err == nil && !bytes.Equal(got, append([]byte("before"), want...)) {
		t.Fatalf("%q: got %q, want %q", doc, got, want)
	}
	if pieces := inPieces(doc); err == nil && !bytes.Equal(pieces, []byte(want)) {
		t.Fatalf("%q: in pieces %q, want %q", doc, pieces, want)
	}
	plain := New(doc)
	plain.Skip()
	plain.End()
	if (plain.Err() == nil) != (err == nil) {
		t.Fatalf("%q: skipped with %v, read with %v", doc, plain.Err(), err)
	}
}

// inPieces reads a string by calls that each take about 100 bytes.
func inPieces(doc []byte) (out []byte) {
	const most = 100
	c := New(doc)
	for ended := !c.OpenString(); !ended; {
		before := len(out)
		if out, ended = c.AppendText(out, c.Pos()+most); len(out)-before > most+utf8.UTFMax {
			return nil
		}
	}
	return out
}

// TestStringsWithoutAVX2: without AVX2 the same strings are accepted and refused.
func TestStringsWithoutAVX2(t *testing.T) {
	defer func(has bool) { cpu.X86.HasAVX2 = has }(cpu.X86.HasAVX2)
	cpu.X86.HasAVX2 = false
	TestStringsOfEveryMake(t)
}

// BenchmarkInvalidAtTheEnd: a byte that is not UTF-8, after many escapes, costs one validation, not
// one for each escape.
func BenchmarkInvalidAtTheEnd(b *testing.B) {
	doc := []byte(`"` + strings.Repeat(`\u0041`, 10_000) + "\xff\"" + strings.Repeat(" ", 64))
	b.SetBytes(int64(len(doc)))
	var dst []byte
	for b.Loop() {
		c := New(doc)
		dst = c.AppendString(dst[:0])
	}
}
