package vllmtier

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
)

// TestKeysOfVLLM reads the keys that vLLM 0.32 makes of blocks, and computes the blocks' names in
// its KV events (testdata/make_keys.py).
func TestKeysOfVLLM(t *testing.T) {
	page, err := os.ReadFile("testdata/keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(page)), "\n")
	for _, line := range lines {
		key, name, _ := strings.Cut(line, " ")
		k, err := Parse([]byte(key))
		if err != nil || string(k.Append(nil)) != key || fmt.Sprint(k.Name()) != name {
			t.Errorf("%s: %+v, name %d, %v", line, k, k.Name(), err)
		}
	}
	if len(lines) != 8 {
		t.Errorf("%d keys", len(lines))
	}
}

// TestOtherKeys refuses keys that are nearly of vLLM's form, and leaves those of others alone.
func TestOtherKeys(t *testing.T) {
	good := "_m_0123456789ab_r0/abc/de_g0/abcdef0123456789.bin"
	if k, err := Parse([]byte(good)); err != nil || k.Name() != 0xabcdef0123456789 {
		t.Fatal(k, err)
	}
	for what, c := range map[string]struct {
		old, new string
		want     error
	}{
		"rank":       {"_r0", "_r1", alias.ErrForm},
		"group":      {"_g0", "_g1", alias.ErrForm},
		"config":     {"0123456789ab_", "0123456789AB_", alias.ErrForm},
		"no model":   {"_m_0123456789ab", "_0123456789ab", alias.ErrForm},
		"prefix":     {"_m_", "p/m_", alias.ErrForm},
		"shard":      {"/abc/", "/abd/", alias.ErrForm},
		"short hash": {"abcdef0123456789.", "abcdef01234567.", alias.ErrForm},
		"odd hash":   {"abcdef0123456789.", "abcdef01234567890.", alias.ErrForm},
		"upper case": {"abcdef0123456789.", "abcdeF0123456789.", alias.ErrForm},
		"long hash":  {"abcdef0123456789.", strings.Repeat("abcdef0123456789", 5) + ".", alias.ErrForm},
		"long model": {"_m_", strings.Repeat("m", 512) + "_", alias.ErrForm},
		"suffix":     {".bin", ".bim", alias.ErrOther},
		"folders":    {"/de_g0", "-de_g0", alias.ErrOther},
		"lmcache":    {good, "m@1@0@ab@half", alias.ErrOther},
		"empty":      {good, "", alias.ErrOther},
	} {
		key := strings.Replace(good, c.old, c.new, 1)
		if k, err := Parse([]byte(key)); !errors.Is(err, c.want) || key == good {
			t.Errorf("%s: %q %+v %v", what, key, k, err)
		}
	}
}

func TestClients(t *testing.T) {
	a, b := Client("gpu1-9081"), Client("gpu1-9082")
	if a == b || !IsClient(a) || !IsClient(b) || len(a) != 27 || IsClient("cognitora") || IsClient(a+"0") {
		t.Error(a, b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("_m_0123456789ab_r0/abc/de_g0/abcdef0123456789.bin"))
	f.Add([]byte("a/abc/de_g0/abcde.bin"))
	f.Fuzz(func(t *testing.T, key []byte) {
		if k, err := Parse(key); err == nil && string(k.Append(nil)) != string(key) {
			t.Errorf("%q became %q", key, k.Append(nil))
		}
	})
}
