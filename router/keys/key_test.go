package keys

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		key, id := Generate()
		if len(key) != keyBytes || seen[key] || seen[id] {
			t.Fatalf("%q, %q", key, id)
		}
		seen[key], seen[id] = true, true
		sum, got, ok := Parse([]byte(key))
		if !ok || string(got) != id || sum != sha256.Sum256([]byte(key)) {
			t.Fatalf("%q is parsed as %q, %v", key, got, ok)
		}
		again := Renew(id)
		if _, got, ok := Parse([]byte(again)); !ok || string(got) != id || again == key {
			t.Fatalf("%q renewed is %q", key, again)
		}
	}
}

// TestEveryByteCounts checks that no changed key parses, so that a mistyped one costs no look-up.
func TestEveryByteCounts(t *testing.T) {
	key, _ := Generate()
	for i := range key {
		for _, c := range []byte("0azZ-_ \x00\xff") {
			changed := key[:i] + string([]byte{c}) + key[i+1:]
			if _, _, ok := Parse([]byte(changed)); ok && changed != key {
				t.Errorf("%q parses", changed)
			}
		}
	}
	for _, text := range []string{"", "cgn_", key[1:], key[:len(key)-1], key + "0", " " + key, strings.ToUpper(key)} {
		if _, _, ok := Parse([]byte(text)); ok {
			t.Errorf("%q parses", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	key, _ := Generate()
	f.Add([]byte(key))
	f.Add([]byte("cgn_"))
	f.Fuzz(func(t *testing.T, text []byte) {
		sum, id, ok := Parse(text)
		if ok && (len(text) != keyBytes || sum != sha256.Sum256(text) || !CheckID(string(id))) {
			t.Errorf("%q parses as %q", text, id)
		}
		if hashed, okHash := Hash(string(text)); okHash != ok || ok && hashed != hex.EncodeToString(sum[:]) {
			t.Errorf("%q has the hash %q, %v", text, hashed, okHash)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	key, _ := Generate()
	text := []byte(key)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := Parse(text); !ok {
			b.Fatal("refused")
		}
	}
}
