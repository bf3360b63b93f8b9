package lmcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
)

// golden is testdata/chunk_names.json: a prompt, and the names that LMCache 0.5.6 in vLLM 0.32 gave
// its chunks on the wire.
type golden struct {
	Config struct {
		ChunkSize int    `json:"chunk_size"`
		Seed      string `json:"PYTHONHASHSEED"`
	}
	First    string
	Prompt   []uint32
	Names    []string
	KeysSeen []string `json:"keys_seen"`
}

func readGolden(t testing.TB) (g golden) {
	t.Helper()
	text, err := os.ReadFile("testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &g)
	}
	if err != nil || len(g.Names) == 0 {
		t.Fatal(err, len(g.Names))
	}
	return g
}

func hexOf(n Name) string { return strconv.FormatUint(uint64(n), 16) }

// names returns the names of a prompt's full chunks.
func names(seed string, tokens []uint32, size int) (all []string) {
	n := First(seed)
	for ; len(tokens) >= size; tokens = tokens[size:] {
		n = Next(n, tokens[:size])
		all = append(all, hexOf(n))
	}
	return all
}

// TestGoldenNames computes the names of a real prompt. Another seed, another size and another token
// make other names throughout.
func TestGoldenNames(t *testing.T) {
	g := readGolden(t)
	if got := hexOf(First(g.Config.Seed)); got != g.First {
		t.Errorf("first name %s, want %s", got, g.First)
	}
	if got := names(g.Config.Seed, g.Prompt, g.Config.ChunkSize); strings.Join(got, " ") != strings.Join(g.Names, " ") {
		t.Errorf("names %q, want %q", got, g.Names)
	}
	other := append([]uint32{g.Prompt[0] + 1}, g.Prompt[1:]...)
	for what, wrong := range map[string][]string{
		"seed": names("1", g.Prompt, g.Config.ChunkSize), "no seed": names("", g.Prompt, g.Config.ChunkSize),
		"size": names(g.Config.Seed, g.Prompt, 2*g.Config.ChunkSize), "token": names(g.Config.Seed, other,
			g.Config.ChunkSize),
	} {
		for _, n := range wrong {
			if strings.Contains(strings.Join(g.Names, " "), n) {
				t.Errorf("another %s makes the same name %s", what, n)
			}
		}
	}
}

// TestGoldenKeys parses every key that LMCache has sent in recordings of its redis://, resp:// and
// s3:// clients and of its multiprocess server, whose form is not supported.
func TestGoldenKeys(t *testing.T) {
	text, err := os.ReadFile("testdata/keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(text)) {
		key := strings.TrimSuffix(line, "\n")
		k, err := Parse([]byte(key))
		switch {
		case strings.Contains(key, "@00000000@"):
			if !errors.Is(err, ErrForm) {
				t.Errorf("%s: %+v %v, want ErrForm", key, k, err)
			}
			seen["multiprocess"]++
			continue
		case err != nil || k.World != 1 || k.Worker != 0 || k.DType != "bfloat16" || k.Layer != NoLayer ||
			!strings.HasPrefix(k.Model, "acc-") || len(k.Model) != 12:
			t.Errorf("%s: %+v %v", key, k, err)
		case string(k.Append(nil)) != key:
			t.Errorf("%s comes back as %s", key, k.Append(nil))
		}
		seen[suffixes[k.Half]]++
	}
	if seen[""] < 10 || seen["kv_bytes"] < 10 || seen["metadata"] < 10 || seen["multiprocess"] < 10 {
		t.Errorf("the recordings have %v", seen)
	}
	g := readGolden(t)
	for _, key := range g.KeysSeen {
		if k, err := Parse([]byte(key)); err != nil || hexOf(k.Name) != g.Names[0] && hexOf(k.Name) != g.Names[1] {
			t.Errorf("%s: %+v %v", key, k, err)
		}
	}
}

func TestParse(t *testing.T) {
	for key, want := range map[string]Key{
		"org/m@8@7@ab@half":               {"org/m", "half", 8, 7, NoLayer, Whole, 0xab},
		"/models/a@b@2@1@0@fp8_e4m3fn":    {"/models/a@b", "fp8_e4m3fn", 2, 1, NoLayer, Whole, 0},
		"m@1@0@ffffffffffffffff@float@31": {"m", "float", 1, 0, 31, Whole, 0xffffffffffffffff},
		"m@1@0@1@uint8@0kv_bytes":         {"m", "uint8", 1, 0, 0, Bytes, 1},
		"m@1@0@1@uint8@0metadata":         {"m", "uint8", 1, 0, 0, Metadata, 1},
	} {
		k, err := Parse([]byte(key))
		if err != nil || k != want {
			t.Errorf("%s: %+v %v", key, k, err)
		}
		if got := string(k.Append(nil)); got != key {
			t.Errorf("%s comes back as %s", key, got)
		}
	}
	long := strings.Repeat("m", MaxModel+1)
	for key, want := range map[string]error{
		"": ErrOther, "greeting": ErrOther, "a@b@c": ErrOther,
		"m@1@0@ab@half@user%7": ErrTags, "m@1@0@ab@half@3@user%7": ErrTags, "m@1@0@ab@half@user%7kv_bytes": ErrTags,
		"m@1@0@ab@": ErrForm, "m@1@0@ab@bf16": ErrForm, "m@1@0@0ab@half": ErrForm, "m@1@0@AB@half": ErrForm,
		"m@1@0@-ab@half": ErrForm, "m@1@0@123456789abcdef01@half": ErrForm, "m@1@1@ab@half": ErrForm,
		"m@0@0@ab@half": ErrForm, "m@01@0@ab@half": ErrForm, "m@+1@0@ab@half": ErrForm, "m@1@-0@ab@half": ErrForm,
		"m@1025@0@ab@half": ErrForm, "m@1@0@ab@half@4096": ErrForm, "m@1@0@ab@half@00": ErrForm,
		"@1@0@ab@half": ErrForm,
		"1@0@ab@half":  ErrForm, "m@1@0@ab@halfkv_byte": ErrForm, "m@1@0@ab@halfmetadatakv_bytes": ErrForm,
		"vllm@m@1@0@ab": ErrForm, "@@@": ErrForm, "@@@@@": ErrForm, long + "@1@0@ab@half": ErrForm,
	} {
		if k, err := Parse([]byte(key)); !errors.Is(err, want) || k != (Key{}) {
			t.Errorf("%.40s: %+v %v, want %v", key, k, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, key := range []string{"m@1@0@ab@halfkv_bytes", "m@1@0@ab@half@3metadata", "a@b@1@0@ab@half",
		"m@1@0@ab@half@t%v"} {
		f.Add([]byte(key))
	}
	f.Fuzz(func(t *testing.T, key []byte) {
		k, err := Parse(key)
		if err != nil {
			return
		}
		if k.Worker >= k.World || k.World > MaxWorkers || !KnownDType(k.DType) || k.Model == "" {
			t.Fatalf("%+v", k)
		}
		if got := k.Append(nil); !bytes.Equal(got, key) {
			t.Fatalf("%q comes back as %q", key, got)
		}
	})
}

func TestNextDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 256)
	if n := testing.AllocsPerRun(100, func() { Next(1, tokens) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func BenchmarkNext(b *testing.B) {
	tokens := make([]uint32, 256)
	for i := range tokens {
		tokens[i] = uint32(100_000 + i)
	}
	for b.Loop() {
		Next(1, tokens)
	}
}
