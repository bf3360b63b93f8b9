package lmcache

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
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

func hexOf(n alias.Name) string { return strconv.FormatUint(uint64(n), 16) }

// namesOf returns the names of a prompt's full chunks.
func namesOf(seed string, tokens []uint32, size int) (all []string) {
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
	got := namesOf(g.Config.Seed, g.Prompt, g.Config.ChunkSize)
	if strings.Join(got, " ") != strings.Join(g.Names, " ") {
		t.Errorf("names %q, want %q", got, g.Names)
	}
	other := append([]uint32{g.Prompt[0] + 1}, g.Prompt[1:]...)
	for what, wrong := range map[string][]string{
		"seed": namesOf("1", g.Prompt, g.Config.ChunkSize), "no seed": namesOf("", g.Prompt, g.Config.ChunkSize),
		"size": namesOf(g.Config.Seed, g.Prompt, 2*g.Config.ChunkSize), "token": namesOf(g.Config.Seed, other,
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
			if !errors.Is(err, alias.ErrForm) {
				t.Errorf("%s: %+v %v, want ErrForm", key, k, err)
			}
			seen["multiprocess"]++
			continue
		case err != nil || k.World != 1 || k.Worker != 0 || k.DType != "bfloat16" || k.Layer != alias.NoLayer ||
			!strings.HasPrefix(k.Model, "acc-") || len(k.Model) != 12:
			t.Errorf("%s: %+v %v", key, k, err)
		case string(Append(nil, &k)) != key:
			t.Errorf("%s comes back as %s", key, Append(nil, &k))
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

// TestKeysOfLMCache reads keys that LMCache's own classes make of chunks of engines with several
// workers, whole and layer by layer (testdata/make_keys.py).
func TestKeysOfLMCache(t *testing.T) {
	text, err := os.ReadFile("testdata/made_keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	tagged, read := 0, 0
	for line := range strings.Lines(string(text)) {
		key, fields, _ := strings.Cut(line, " ")
		var is struct {
			Model, Chunk, DType, Half string
			World, Worker             uint32
			Layer                     *uint32
			Tags                      bool
		}
		if err := json.Unmarshal([]byte(fields), &is); err != nil {
			t.Fatal(err)
		}
		k, err := Parse([]byte(key))
		if is.Tags {
			if !errors.Is(err, alias.ErrTags) {
				t.Errorf("%s: %v", key, err)
			}
			tagged++
			continue
		}
		want := alias.Key{Scheme: alias.LMCache, Model: is.Model, DType: is.DType, World: is.World, Worker: is.Worker,
			Layer: alias.NoLayer, Name: k.Name, Half: alias.Half(slices.Index(suffixes[:], is.Half))}
		if is.Layer != nil {
			want.Layer = *is.Layer
		}
		if err != nil || k != want || hexOf(k.Name) != is.Chunk || string(Append(nil, &k)) != key {
			t.Errorf("%s: %+v %v, want %+v", key, k, err, want)
		}
		read++
	}
	if tagged != 3 || read != 135 {
		t.Errorf("%d keys, %d with tags", read, tagged)
	}
}

func TestParse(t *testing.T) {
	for key, want := range map[string]alias.Key{
		"org/m@8@7@ab@half":               {Model: "org/m", DType: "half", World: 8, Worker: 7, Layer: alias.NoLayer, Name: 0xab},
		"/models/a@b@2@1@0@fp8_e4m3fn":    {Model: "/models/a@b", DType: "fp8_e4m3fn", World: 2, Worker: 1, Layer: alias.NoLayer},
		"m@1@0@ffffffffffffffff@float@31": {Model: "m", DType: "float", World: 1, Layer: 31, Name: 0xffffffffffffffff},
		"m@1@0@1@uint8@0kv_bytes":         {Model: "m", DType: "uint8", World: 1, Layer: 0, Half: alias.Second, Name: 1},
		"m@1@0@1@uint8@0metadata":         {Model: "m", DType: "uint8", World: 1, Layer: 0, Half: alias.First, Name: 1},
	} {
		k, err := Parse([]byte(key))
		want.Scheme = alias.LMCache
		if err != nil || k != want {
			t.Errorf("%s: %+v %v", key, k, err)
		}
		if got := string(Append(nil, &k)); got != key {
			t.Errorf("%s comes back as %s", key, got)
		}
	}
	form, tags := alias.ErrForm, alias.ErrTags
	long := strings.Repeat("m", alias.MaxModel+1)
	for key, want := range map[string]error{
		"": alias.ErrOther, "greeting": alias.ErrOther, "a@b@c": alias.ErrOther,
		"m@1@0@ab@half@user%7": tags, "m@1@0@ab@half@3@user%7": tags, "m@1@0@ab@half@user%7kv_bytes": tags,
		"m@1@0@ab@": form, "m@1@0@ab@bf16": form, "m@1@0@0ab@half": form, "m@1@0@AB@half": form,
		"m@1@0@-ab@half": form, "m@1@0@123456789abcdef01@half": form, "m@1@1@ab@half": form,
		"m@0@0@ab@half": form, "m@01@0@ab@half": form, "m@+1@0@ab@half": form, "m@1@-0@ab@half": form,
		"m@1025@0@ab@half": form, "m@1@0@ab@half@4096": form, "m@1@0@ab@half@00": form,
		"@1@0@ab@half": form,
		"1@0@ab@half":  form, "m@1@0@ab@halfkv_byte": form, "m@1@0@ab@halfmetadatakv_bytes": form,
		"vllm@m@1@0@ab": form, "@@@": form, "@@@@@": form, long + "@1@0@ab@half": form,
	} {
		if k, err := Parse([]byte(key)); !errors.Is(err, want) || k != (alias.Key{}) {
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
		if k.Worker >= k.World || k.World > alias.MaxWorkers || dtypeOf([]byte(k.DType)) == "" || k.Model == "" {
			t.Fatalf("%+v", k)
		}
		if got := Append(nil, &k); !bytes.Equal(got, key) {
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
