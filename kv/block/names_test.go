package block

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

// textWith returns the text form of an address with a tail.
func textWith(namespace string, a Addr, tail Tail) string {
	parent := ""
	if tail.Parent != (Digest{}) {
		parent = hex.EncodeToString(tail.Parent[:])
	}
	return Text(namespace, a) + ":" + parent + ":" + hex.EncodeToString(tail.Names)
}

// TestGoldenNames compares the attribute and the text form of an object with testdata/names.json,
// on which programs in other languages depend.
func TestGoldenNames(t *testing.T) {
	var golden []struct {
		Namespace             string
		Layer                 uint32
		Parent                string
		Digests               []string // of the object's blocks of 16 tokens
		Names, Attr, Key, Cut string   // Cut: the key without its tail
	}
	text, err := os.ReadFile("testdata/names.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &golden); err != nil {
		t.Fatal(err)
	}
	if len(golden) < 3 {
		t.Errorf("%d objects", len(golden))
	}
	for _, g := range golden {
		a := Addr{Model: IDOf(g.Namespace), Layer: g.Layer}
		var tail Tail
		unhex(tail.Parent[:], []byte(g.Parent))
		for i, text := range g.Digests {
			unhex(a.Digest[:], []byte(text))
			if name := NameOf(&a.Digest); i < len(g.Digests)-1 {
				tail.Names = append(tail.Names, name[:]...)
			}
		}
		attr := AppendNames(nil, tail.Names)
		if hex.EncodeToString(tail.Names) != g.Names || hex.EncodeToString(attr) != g.Attr {
			t.Errorf("names %x, attribute %x", tail.Names, attr)
		}
		if back := ParseNames(attr); !bytes.Equal(back, tail.Names) {
			t.Errorf("%x reads as %x", attr, back)
		}
		if Text(g.Namespace, a) != g.Cut || textWith(g.Namespace, a, tail) != g.Key {
			t.Errorf("key %s", textWith(g.Namespace, a, tail))
		}
		for _, key := range []string{g.Cut, g.Key} {
			ns, back, read, err := ParseText([]byte(key))
			if err != nil || ns != g.Namespace || back != a {
				t.Errorf("%q reads as %q %v: %v", key, ns, back, err)
			}
			if key == g.Key && (read.Parent != tail.Parent || !bytes.Equal(read.Names, tail.Names)) {
				t.Errorf("%q has the tail %v", key, read)
			}
		}
	}
}

func TestBlocks(t *testing.T) {
	for tokens, want := range map[uint32]int{1: 1, 16: 1, 17: 0, 24: 0, 32: 2, 64: 4, 512: 32, 528: 0, 1 << 31: 0} {
		n := Namespace{Tokens: tokens}
		if got := n.Blocks(); got != want {
			t.Errorf("%d tokens are %d blocks", tokens, got)
		}
	}
}

func TestTailRefused(t *testing.T) {
	wide := llama
	wide.Tokens = 64
	a := Addr{Digest: Seed("m", "", ""), Layer: LayerAll}
	parent, name := strings.Repeat("7", 64), strings.Repeat("5", 16)
	for namespace, tails := range map[string][]string{
		wide.String(): {":", ":" + parent, ":" + parent[1:] + ":", "::" + name, "::" + strings.Repeat(name, 4), ":::",
			"::" + strings.Repeat("g", 48), ":" + strings.Repeat("g", 64) + ":"},
		llama.String(): {"::" + name, "::" + strings.Repeat(name, 3)},
	} {
		for _, tail := range tails {
			if _, _, _, err := ParseText([]byte(Text(namespace, a) + tail)); !errors.Is(err, ErrAddress) {
				t.Errorf("%s: %v", tail, err)
			}
		}
	}
	longest := Namespace{Model: "m", Revision: "r", DType: "d", Layout: "l", Tokens: 512, TP: 1, PP: 1}
	longest.Tenant = strings.Repeat("t", MaxNamespace-len(longest.String()))
	text := Text(longest.String(), a) + ":" + parent + ":" + strings.Repeat(name, MaxNames)
	if _, _, tail, err := ParseText([]byte(text)); err != nil || len(text) != MaxAddress ||
		len(tail.Names) != 8*MaxNames {
		t.Errorf("an address of %d bytes, at most %d: %v", len(text), MaxAddress, err)
	}
}

func FuzzParseNames(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(namesMagic))
	f.Add([]byte("s3\x01 something else"))
	f.Add([]byte(namesMagic + "12345678"))
	f.Add([]byte(namesMagic + "1234567812345678"))
	f.Add([]byte(namesMagic + "12345678abcdefgh\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(append([]byte(namesMagic), bytes.Repeat([]byte("1234567"), 40)...))
	f.Fuzz(func(t *testing.T, attr []byte) {
		names := ParseNames(attr)
		if names == nil {
			return
		}
		if !bytes.Equal(AppendNames(nil, names), attr) {
			t.Errorf("%q reads as %x", attr, names)
		}
		seen := map[Name]bool{{}: true}
		for ; len(names) > 0; names = names[NameBytes:] {
			if seen[Name(names)] || len(seen) > MaxNames {
				t.Errorf("%q has the name %x twice, or too many", attr, names[:NameBytes])
			}
			seen[Name(names)] = true
		}
	})
}
