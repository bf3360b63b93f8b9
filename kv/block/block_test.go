package block

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
)

var llama = Namespace{Model: "meta-llama/Llama-3.1-8B", Revision: "0e9e39f", DType: "bf16", Layout: "vllm.NHD",
	Tokens: 16, TP: 2, TPRank: 1, PP: 1}

// golden is testdata/addresses.json. golden never changes, because other programs depend on it.
type golden struct {
	Namespaces []struct {
		Fields   Namespace
		Text, ID string
	}
	Keys []struct{ Namespace, Key, Digest string }
}

func TestGolden(t *testing.T) {
	var g golden
	text, err := os.ReadFile("testdata/addresses.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &g); err != nil {
		t.Fatal(err)
	}
	ids := map[string]string{}
	for _, n := range g.Namespaces {
		id := n.Fields.ID()
		if n.Fields.String() != n.Text || hex.EncodeToString(id[:]) != n.ID {
			t.Errorf("%+v is %q %x", n.Fields, n.Fields.String(), id)
		}
		if back, err := ParseNamespace(n.Text); err != nil || back != n.Fields {
			t.Errorf("%q reads as %+v, %v", n.Text, back, err)
		}
		if other, twice := ids[n.ID]; twice {
			t.Errorf("%q and %q have one id", other, n.Text)
		}
		ids[n.ID] = n.Text
	}
	for _, k := range g.Keys {
		a := OfKey(IDOf(k.Namespace), []byte(k.Key))
		if hex.EncodeToString(a.Digest[:]) != k.Digest {
			t.Errorf("key %q is %x", k.Key, a.Digest)
		}
	}
	if len(g.Namespaces) < 10 || len(g.Keys) < 3 {
		t.Errorf("%d namespaces and %d keys", len(g.Namespaces), len(g.Keys))
	}
}

func TestGoldenInAnotherLanguage(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: the addresses were not checked by a second implementation")
	}
	if out, err := exec.Command(python, "testdata/check_addresses.py").CombinedOutput(); err != nil {
		t.Fatalf("check_addresses.py: %v\n%s", err, out)
	}
}

// TestRouterDigests compares the chain with the golden digests of the router's index.
func TestRouterDigests(t *testing.T) {
	text, err := os.ReadFile("../../router/prefix/testdata/digests.json")
	if err != nil {
		t.Fatal(err)
	}
	var cases []struct {
		Model, Adapter, Salt, Seed string
		Tokens                     []uint32
		Digests                    []string
	}
	if err := json.Unmarshal(text, &cases); err != nil {
		t.Fatal(err)
	}
	blocks := 0
	for _, c := range cases {
		d := Seed(c.Model, c.Adapter, c.Salt)
		if hex.EncodeToString(d[:]) != c.Seed {
			t.Errorf("seed of %s is %x", c.Model, d)
		}
		for i := 0; i+Tokens <= len(c.Tokens); i += Tokens {
			d = Next(d, (*[Tokens]uint32)(c.Tokens[i:]))
			if hex.EncodeToString(d[:]) != c.Digests[i/Tokens] {
				t.Errorf("block %d is %x", i/Tokens, d)
			}
			blocks++
		}
	}
	if blocks == 0 {
		t.Error("no case has tokens")
	}
}

func TestText(t *testing.T) {
	a := Addr{Digest: Seed("m", "", ""), Model: llama.ID(), Layer: 31}
	text := Text(llama.String(), a)
	ns, back, tail, err := ParseText([]byte(text))
	if err != nil || back != a || ns != llama.String() || tail.Parent != (Digest{}) || tail.Names != nil {
		t.Fatalf("%q reads as %q %v %v %v", text, ns, back, tail, err)
	}
	for _, bad := range []string{
		"", "cgn:", "cgn:x", text[1:], text[:len(text)-1], text + "0", strings.Replace(text, ":31:", ":031:", 1),
		strings.Replace(text, ":31:", ":4294967296:", 1), strings.Replace(text, ":31:", "::", 1),
		strings.Replace(text, "kv1;", "kv2;", 1),
		"cgn:key1;resp.0;:0:" + text[len(text)-64:], strings.Replace(text, "bf16", "", 1),
	} {
		if _, _, _, err := ParseText([]byte(bad)); !errors.Is(err, ErrAddress) && !errors.Is(err, ErrNamespace) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestOfKeys(t *testing.T) {
	keys := Namespace{Space: "resp.0", Tenant: "a;b"}.String()
	if n, err := ParseNamespace(keys); err != nil || n.Space != "resp.0" || !OfKeys(keys) {
		t.Errorf("%q reads as %+v, %v", keys, n, err)
	}
	if OfKeys(llama.String()) || OfKeys("") {
		t.Error("blocks of a model, or nothing, are of keys")
	}
}

func TestNamespaceRefused(t *testing.T) {
	for _, bad := range []string{
		"", "kv1", "kv1;m;r;d;l;16;1.0;1.0", "kv1;m;r;d;l;16;1.1;1.0;", "kv1;m;r;d;l;0;1.0;1.0;",
		"kv1;m;r;d;l;016;1.0;1.0;",
		"kv1;m;r;d;l;16;1;1.0;", "kv1;m;r;d;l;16;1.0;1.0;%4", "kv1;m;r;d;l;16;1.0;1.0;%41",
		"kv1;m;r;d;l;16;1.0;1.0;%zz",
		"kv1;;r;d;l;16;1.0;1.0;", "key1;;", "key1;a", "key1;a;b;c",
		"kv1;" + strings.Repeat("m", 600) + ";r;d;l;16;1.0;1.0;",
		"kv1;a b;r;d;l;16;1.0;1.0;",
	} {
		if n, err := ParseNamespace(bad); !errors.Is(err, ErrNamespace) {
			t.Errorf("%q reads as %+v, %v", bad, n, err)
		}
	}
	mixed := llama
	mixed.Space = "resp.0"
	if err := mixed.Check(); !errors.Is(err, ErrNamespace) {
		t.Error("a namespace of both kinds:", err)
	}
}

func FuzzParseText(f *testing.F) {
	f.Add([]byte(Text(llama.String(), Addr{Layer: LayerAll})))
	f.Add([]byte("cgn:kv1;a%20b;r;d;l;16;1.0;1.0;t:0:00"))
	wide := llama
	wide.Tokens = 48
	for _, tail := range []string{"::", ":" + strings.Repeat("0a", 32) + ":", ":" + strings.Repeat("fe", 32) + ":" +
		strings.Repeat("0102030405060708", 2), "::" + strings.Repeat("0102030405060708", 3)} {
		f.Add([]byte(Text(wide.String(), Addr{Layer: LayerAll}) + tail))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		ns, a, tail, err := ParseText(text)
		if err != nil {
			return
		}
		plain, full := Text(ns, a), textWith(ns, a, tail)
		zero := plain + ":" + strings.Repeat("0", 64) + ":" + hex.EncodeToString(tail.Names) // the same as no parent
		is := func(form string) bool { return strings.EqualFold(form, string(text)) }
		if !is(plain) && !is(full) && !is(zero) {
			t.Errorf("%q reads as %q", text, full)
		}
		if len(text) > MaxAddress {
			t.Errorf("%d bytes were read", len(text))
		}
	})
}
