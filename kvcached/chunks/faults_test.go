package chunks

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kv/vllmtier"
)

// vllmObject is an object of vLLM's tier, and the name of its block in KV events.
type vllmObject struct {
	key  []byte
	name alias.Name
}

// vllmObjects are the objects that vLLM's own code makes of a prompt's first block, for one engine
// ("none") and for others that differ from it in one thing (kv/vllmtier/testdata/make_faults.py).
func vllmObjects(t *testing.T) map[string]vllmObject {
	t.Helper()
	text, err := os.ReadFile("../../kv/vllmtier/testdata/faults.txt")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]vllmObject{}
	for line := range strings.Lines(string(text)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 3)
		k, err := vllmtier.Parse([]byte(f[0]))
		if err != nil || strconv.FormatUint(uint64(k.Name()), 10) != f[1] {
			t.Fatal(line, err)
		}
		all[f[2]] = vllmObject{[]byte(f[0]), k.Name()}
	}
	return all
}

// TestTierFaults stores an object of an engine that differs in one thing from the engine of which
// is told, and plants faults in what is told. Nothing counts then. The name covers the seed, the
// hash function, adapter and salt; CONFIG in the key covers the data type, the block size and the
// model.
func TestTierFaults(t *testing.T) {
	client := vllmtier.Client("gpu1")
	all := vllmObjects(t)
	try := func(what string, stored vllmObject, plant func(s *alias.Source), want int) {
		x := residency.New(residency.Options{Ring: 8})
		table := New(Options{Index: x})
		s := alias.Source{Scheme: alias.VLLMTier, Keys: bucket, Engine: client, World: 1, Served: "m", Revision: "-"}
		told := chunkOf(0, 0)
		told.Name = all["none"].name
		table.Asked(client, bucket, all["none"].key)
		plant(&s)
		_, _ = table.Tell(&s, []alias.Chunk{told}) // some are refused
		table.Apply(tierChange(stored.key, nil, residency.Host, true))
		st, blocks := table.Stats(), len(positions(t, x))
		if blocks != 2*want || st.Counted != want || st.Untold != 1-want {
			t.Errorf("%s: %d blocks count, %+v", what, blocks, st)
		}
	}
	for what, stored := range all {
		want := 0
		if what == "none" {
			want = 1
		}
		try(what, stored, func(*alias.Source) {}, want)
	}
	for what, plant := range map[string]func(s *alias.Source){
		"another engine": func(s *alias.Source) { s.Model = vllmtier.Client("gpu2") },
		"bucket":         func(s *alias.Source) { s.Keys = "key1;s3.other;" },
		"tenant":         func(s *alias.Source) { s.Keys += "a" },
		"scheme":         func(s *alias.Source) { s.Scheme = alias.HiCache },
		"workers":        func(s *alias.Source) { s.World = 2 },
	} {
		try(what, all["none"], plant, 0)
	}
	s := alias.Source{Scheme: alias.VLLMTier, Keys: bucket, Engine: client, World: 1, Served: "m", Revision: "-"}
	told := []alias.Chunk{chunkOf(0, 0), chunkOf(1, 0)}
	contradict(t, s, told, func(x *Table, present bool) {
		for n := range told {
			x.Apply(tierChange(tierKey("0123456789ab", n), nil, residency.Host, present))
		}
	}, map[string]func(s *alias.Source){
		"revision": func(s *alias.Source) { s.Revision = "2" },
		"served":   func(s *alias.Source) { s.Served = "other" },
	})
}

// madeKeys are LMCache's own keys of chunk a, of both workers and all three layers of an engine, or
// of both workers' whole parts (kv/lmcache/testdata/make_keys.py).
func madeKeys(t *testing.T, dtype, half string) (keys []string) {
	t.Helper()
	text, err := os.ReadFile("../../kv/lmcache/testdata/made_keys.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		key, fields, _ := strings.Cut(line, " ")
		var is struct {
			Chunk, DType, Half string
			World              int
		}
		if err := json.Unmarshal([]byte(fields), &is); err != nil {
			t.Fatal(err)
		}
		if is.Chunk == "a" && is.World == 2 && is.DType == dtype && (is.Half != "") == (half != "") {
			keys = append(keys, key)
		}
	}
	return keys
}

// TestFaultsOfParts counts a chunk of an engine with two workers, whole and layer by layer, with
// and without halves. With a fault in the number of its parts it does not count.
func TestFaultsOfParts(t *testing.T) {
	for _, halves := range []bool{false, true} {
		for _, layers := range []uint32{0, 3} {
			dtype, model, half := "half", "org/m@1", ""
			if layers > 0 {
				dtype, model = "fp8_e4m3fn", "org/m"
			}
			if halves {
				half = "kv_bytes"
			}
			keys := madeKeys(t, dtype, half)
			good := alias.Source{Scheme: alias.LMCache, Keys: keySpace, Model: model, DType: dtype, World: 2,
				Layers: layers, Halves: halves, Served: "m", Revision: "-"}
			if len(keys) != good.Parts() {
				t.Fatalf("%d keys for %d parts", len(keys), good.Parts())
			}
			for what, plant := range map[string]func(s *alias.Source){
				"none":    func(*alias.Source) {},
				"workers": func(s *alias.Source) { s.World = 1 }, "more workers": func(s *alias.Source) { s.World = 4 },
				"layers": func(s *alias.Source) { s.Layers++ },
				"halves": func(s *alias.Source) { s.Halves = !s.Halves },
				"dtype":  func(s *alias.Source) { s.DType = "bfloat16" },
			} {
				table := New(Options{Index: index{}})
				s, told := good, chunkOf(0, 0)
				plant(&s)
				told.Name = 0xa
				if n, err := table.Tell(&s, []alias.Chunk{told}); n != 1 || err != nil {
					t.Fatal(what, n, err)
				}
				store(table, keys, true)
				if st := table.Stats(); (st.Counted == 1) != (what == "none") || st.Parts != len(keys) {
					t.Errorf("%d layers, halves %v, %s: %+v", layers, halves, what, st)
				}
				store(table, keys[1:2], false)
				if st := table.Stats(); st.Counted != 0 {
					t.Errorf("%d layers, halves %v, %s: a chunk counts without a part", layers, halves, what)
				}
			}
		}
	}
}
