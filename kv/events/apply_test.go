package events

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

func TestMain(m *testing.M) {
	// zmq4's Close does not stop this goroutine
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// engine is the knowledge about an engine, with the index for its reports.
type engine struct {
	t      testing.TB
	counts counters
	out    outbox
	known  *knowledge
	index  *residency.Index
	number uint64
}

var space = block.Namespace{Model: "m", Revision: "-", DType: "-", Layout: "-", Tokens: 16, TP: 1, PP: 1}

func newEngine(t testing.TB, most int) *engine {
	e := &engine{t: t, index: residency.New(residency.Options{})}
	e.known = newKnowledge("m", most, &e.counts, &e.out)
	return e
}

// apply applies a batch and reports the changes.
func (e *engine) apply(payload []byte) error {
	e.t.Helper()
	err := e.known.apply(payload)
	for {
		events, _ := e.out.take(nil, nil, space.String())
		if len(events) == 0 && e.number > 0 {
			return err
		}
		e.number++
		if err := e.index.Report(&residency.Report{Engine: "e", Epoch: 1, Number: e.number, Fresh: e.number == 1,
			Events: events}); err != nil {
			e.t.Fatal(err)
		}
	}
}

func (e *engine) must(payload []byte) {
	e.t.Helper()
	if err := e.apply(payload); err != nil {
		e.t.Fatal(err)
	}
}

// held returns the engine's tiers for the blocks of a chain.
func (e *engine) held(chain []block.Digest) []residency.Tiers {
	out := make([]residency.Tiers, len(chain))
	e.index.Held(space.ID(), block.LayerAll, chain, out)
	return out
}

func (e *engine) expect(what string, chain []block.Digest, want ...residency.Tiers) {
	e.t.Helper()
	got := e.held(chain)
	if len(want) == 1 {
		for len(want) < len(got) {
			want = append(want, want[0])
		}
	}
	for i := range got {
		if got[i] != want[i] {
			e.t.Errorf("%s: the blocks are in %v, want %v", what, got, want)
			return
		}
	}
}

// chain returns the digests of a prompt, computed block by block as in the specification. An empty
// adapter is the base model.
func chain(adapter, salt string, tokens []uint32) (all []block.Digest) {
	return chainOf(cmp.Or(adapter, "m"), "", salt, tokens)
}

func chainOf(model, adapter, salt string, tokens []uint32) (all []block.Digest) {
	d := block.Seed(model, adapter, salt)
	for ; len(tokens) >= block.Tokens; tokens = tokens[block.Tokens:] {
		d = block.Next(d, (*[block.Tokens]uint32)(tokens))
		all = append(all, d)
	}
	return all
}

func count(from, n int) []uint32 {
	tokens := make([]uint32, n)
	for i := range tokens {
		tokens[i] = uint32(from + i)
	}
	return tokens
}

// TestForms checks that every known form of a batch has the same result.
func TestForms(t *testing.T) {
	text, err := os.ReadFile("testdata/forms.json")
	if err != nil {
		t.Fatal(err)
	}
	var forms map[string]string
	if err := json.Unmarshal(text, &forms); err != nil {
		t.Fatal(err)
	}
	if len(forms) < 19 {
		t.Fatalf("only %d forms", len(forms))
	}
	for name, form := range forms {
		payload, err := hex.DecodeString(form)
		if err != nil {
			t.Fatal(err)
		}
		e := newEngine(t, 100)
		e.must(payload)
		e.expect(name, chain("", "", count(1000, 32)), residency.Device, 0)
		if n := e.counts.unusable.Load() + e.counts.orphans.Load() + e.counts.unnamed.Load(); n > 0 ||
			e.known.blocks > 3 {
			t.Errorf("%s: %d blocks are not known, %d are", name, n, e.known.blocks)
		}
	}
}

// recorded reads the frames of a message recorded from a real vLLM.
func recorded(t testing.TB, name string) (frames [][]byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata/vllm-0.32", name+".bin"))
	if err != nil {
		t.Fatal(err)
	}
	n := binary.BigEndian.Uint32(b)
	for b = b[4:]; n > 0; n-- {
		size := binary.BigEndian.Uint32(b)
		frames, b = append(frames, b[4:4+size]), b[4+size:]
	}
	return frames
}

// tokensOf reads the tokens of a batch's first stored event with another decoder.
func tokensOf(t testing.TB, payload []byte) (tokens []uint32) {
	t.Helper()
	var batch struct {
		_msgpack struct{} `msgpack:",as_array"`
		At       float64
		Events   []struct {
			Tokens []uint32 `msgpack:"token_ids"`
		}
		Rank int
	}
	if err := msgpack.NewDecoder(bytes.NewReader(payload)).Decode(&batch); err != nil {
		t.Fatal(err)
	}
	for _, e := range batch.Events {
		tokens = append(tokens, e.Tokens...)
	}
	return tokens
}

// recordedBatch reads the batch of a message recorded from a real vLLM.
func recordedBatch(t testing.TB, name string) []byte {
	t.Helper()
	_, payload, err := batchOf(recorded(t, name))
	if err != nil {
		t.Fatal(name, err)
	}
	return payload
}

// TestRecordedRanks checks messages of vLLM 0.32 with --data-parallel-size 2, at the port of its
// endpoint and at the next one.
func TestRecordedRanks(t *testing.T) {
	first, second := recordedBatch(t, "ranks-0"), recordedBatch(t, "ranks-1")
	for rank, payload := range [][]byte{first, second} {
		e := newEngine(t, 1000)
		e.must(payload)
		e.expect("two blocks of 32", chain("", "", tokensOf(t, payload)), residency.Device)
		if e.known.rank != rank {
			t.Errorf("rank %d says that it is %d", rank, e.known.rank)
		}
		e.must(map[int][]byte{0: second, 1: first}[rank])
		if n := e.counts.others.Load(); n != 1 {
			t.Errorf("%d events of another rank", n)
		}
	}
}

// TestRecorded checks messages of vLLM 0.32, with hashes as numbers and as bytes.
func TestRecorded(t *testing.T) {
	batch := func(name string) []byte { return recordedBatch(t, name) }
	t.Run("numbers", func(t *testing.T) {
		e := newEngine(t, 1000)
		three := batch("int-blockstored-3blocks")
		tokens := tokensOf(t, three)
		e.must(three)
		e.expect("three blocks of 32", chain("", "", tokens[:96]), residency.Device)

		first, child := batch("dealer-replay-000"), batch("int-blockstored-child")
		if !bytes.Equal(child, batch("dealer-replay-001")) {
			t.Error("the replay is not what was published")
		}
		both := append(tokensOf(t, first), tokensOf(t, child)...)
		e.must(child)
		if e.counts.orphans.Load() != 1 {
			t.Error("a child before its parent")
		}
		e.must(first)
		e.must(child)
		e.expect("a child", chain("", "", both), residency.Device)

		salted := batch("int-blockstored-cachesalt")
		e.must(salted)
		e.expect("with a salt", chain("", "tenant-a", tokensOf(t, salted)), residency.Device)
		e.expect("with another salt", chain("", "tenant-b", tokensOf(t, salted)), 0)
		e.expect("without", chain("", "", tokensOf(t, salted)), 0)
		e.must(batch("dealer-replay-003"))
		e.expect("with the other salt", chain("", "tenant-b", tokensOf(t, salted)), residency.Device)
	})
	t.Run("bytes", func(t *testing.T) {
		e := newEngine(t, 1000)
		three := batch("bytes-blockstored")
		e.must(three)
		tokens := tokensOf(t, three)
		e.expect("three blocks", chain("", "", tokens[:96]), residency.Device)
		e.must(batch("bytes-removed-then-stored"))
		e.expect("after evictions", chain("", "", tokens[:96])[:4], 0)
		if e.known.blocks < 5 {
			t.Errorf("%d blocks", e.known.blocks)
		}
		e.must(batch("bytes-allcleared-then-stored"))
		if e.known.blocks != 1 || !e.known.emptied {
			t.Errorf("%d blocks after all were cleared", e.known.blocks)
		}
		e.expect("after a reset", chain("", "tenant-a", tokensOf(t, batch("bytes-allcleared-then-stored"))),
			residency.Device)
	})
	t.Run("end of a replay", func(t *testing.T) {
		seq, payload, err := batchOf(recorded(t, "dealer-replay-004"))
		if err != nil || seq != endOfReplay || len(payload) != 0 {
			t.Error(seq, payload, err)
		}
	})
}

// TestRecordedAdapters checks requests with the same prompt for a base model and for two adapters,
// as vLLM 0.32 reported their blocks. The blocks of each count for it alone.
func TestRecordedAdapters(t *testing.T) {
	batch := func(name string) []byte {
		_, payload, err := batchOf(recorded(t, name))
		if err != nil {
			t.Fatal(name, err)
		}
		return payload
	}
	tokens := tokensOf(t, batch("int-blockstored-lora-base"))
	if len(tokens) != 448 {
		t.Fatalf("%d tokens", len(tokens))
	}
	for _, name := range []string{"base", "sql", "chat"} { // the same prompt
		e := newEngine(t, 1000)
		e.must(batch("int-blockstored-lora-" + name))
		for _, of := range []string{"base", "sql", "chat"} {
			want := residency.Tiers(0)
			if of == name {
				want = residency.Device
			}
			adapter := strings.TrimPrefix(of, "base")
			e.expect(of+"'s blocks after a request for "+name, chain(adapter, "", tokens), want)
		}
		if e.counts.unnamed.Load() != 0 {
			t.Errorf("%s: %d blocks have no name", name, e.counts.unnamed.Load())
		}
	}
}

type fields = map[string]any

// batchFrom encodes a batch with another encoder.
func batchFrom(t testing.TB, rank any, events ...any) []byte {
	t.Helper()
	b, err := msgpack.Marshal([]any{1.5, events, rank})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func stores(hashes []any, parent any, tokens []uint32, size int, more fields) fields {
	f := fields{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
		"block_size": size}
	for k, v := range more {
		f[k] = v
	}
	return f
}

func removes(hashes []any, medium string) fields {
	return fields{"type": "BlockRemoved", "block_hashes": hashes, "medium": medium}
}

func TestMediaAreKeptApart(t *testing.T) {
	e := newEngine(t, 100)
	tokens := count(1, 32)
	all := chain("", "", tokens)
	e.must(batchFrom(t, 0, stores([]any{1, 2}, nil, tokens, 16, nil)))
	e.must(batchFrom(t, 0, fields{"type": "BlockStored", "block_hashes": []any{1, 2}, "parent_block_hash": nil,
		"token_ids": []uint32{}, "block_size": 16, "medium": "CPU"}))
	e.expect("without tokens in another tier", all, residency.Device|residency.Host)
	e.must(batchFrom(t, 0, removes([]any{2, 1}, "GPU"), stores([]any{1}, nil, tokens[:16], 16,
		fields{"medium": "NVME"}), stores([]any{2}, 1, tokens[16:], 16, fields{"medium": "remote"})))
	e.expect("out of the device", all, residency.Host|residency.Disk, residency.Host|residency.Shared)
	e.must(batchFrom(t, 0, removes([]any{1, 2}, "cpu_pinned"), removes([]any{1, 2}, "DISK"),
		removes([]any{1, 2}, "EXTERNAL"), removes([]any{1, 2}, "GPU"), removes([]any{1}, "tape")))
	e.expect("out of all", all, 0)
	if e.known.blocks != 0 || len(e.known.table.slots) != 0 || e.counts.unknown.Load() != 1 {
		t.Errorf("%d blocks, %d slots, %d unknown", e.known.blocks, len(e.known.table.slots), e.counts.unknown.Load())
	}
	e.must(batchFrom(t, 0, fields{"type": "BlockStored", "block_hashes": []any{1}, "token_ids": []uint32{},
		"block_size": 16, "medium": "CPU"}))
	if e.counts.orphans.Load() != 1 {
		t.Error("a block of unknown tokens")
	}
}

func TestGroupsAndRanksAreKeptApart(t *testing.T) {
	e := newEngine(t, 100)
	tokens := count(1, 16)
	group := func(i int, spec string, hash int) fields {
		return stores([]any{hash}, nil, tokens, 16, fields{"group_idx": i, "kv_cache_spec_kind": spec})
	}
	e.must(batchFrom(t, 1, group(0, "mamba", 5)))
	e.expect("of another kind", chain("", "", tokens), 0)
	e.must(batchFrom(t, 1, group(2, "mla_attention", 5), group(3, "full_attention", 6), group(63, "", 7),
		group(64, "full_attention", 7)))
	e.expect("of full attention", chain("", "", tokens), residency.Device)
	e.must(batchFrom(t, 0, fields{"type": "AllBlocksCleared"}, group(2, "mla_attention", 9)))
	e.must(batchFrom(t, 1, fields{"type": "BlockRemoved", "block_hashes": []any{5, 6}, "group_idx": 0}))
	e.expect("after others were removed", chain("", "", tokens), residency.Device)
	e.must(batchFrom(t, 1, fields{"type": "BlockRemoved", "block_hashes": []any{5}, "group_idx": 2}))
	e.expect("after it was removed", chain("", "", tokens), 0)
	if got := e.counts.others.Load(); got != 7 {
		t.Errorf("%d events do not count, want 7", got)
	}
}

// TestComputedTwice checks an engine that computes a block twice and reports both. The engine has
// the block until both are removed.
func TestComputedTwice(t *testing.T) {
	e := newEngine(t, 100)
	one := stores([]any{1}, nil, count(1, 16), 16, nil)
	e.must(batchFrom(t, 0, one, one, removes([]any{1}, "GPU")))
	e.expect("one of two", chain("", "", count(1, 16)), residency.Device)
	e.must(batchFrom(t, 0, removes([]any{1}, "GPU")))
	e.expect("none", chain("", "", count(1, 16)), 0)
}

func TestAdaptersSaltsAndImages(t *testing.T) {
	e := newEngine(t, 100)
	tokens := count(1, 48)
	e.must(batchFrom(t, 0, stores([]any{1, 2, 3}, nil, tokens, 16, fields{"lora_id": 4, "lora_name": "tune",
		"extra_keys": []any{[]any{"tune", "me"}, []any{"tune"}, []any{"tune"}}})))
	e.expect("an adapter and a salt", chain("tune", "me", tokens), residency.Device)
	e.must(batchFrom(t, 0, stores([]any{11}, nil, tokens, 16, fields{"lora_id": 4, "extra_keys": []any{[]any{4}}})))
	e.expect("an adapter by number", chainOf("m", "4", "", tokens[:16]), residency.Device)
	e.must(batchFrom(t, 0, stores([]any{21}, nil, tokens, 16, fields{"cache_salt": "new",
		"extra_keys": []any{[]any{"new"}}})))
	e.expect("a salt by its own name", chain("", "new", tokens[:16]), residency.Device)
	e.must(batchFrom(t, 0, stores([]any{31, 32, 33}, nil, tokens, 16,
		fields{"extra_keys": []any{nil, []any{[]any{"image", 3}}, nil}})))
	e.expect("before an image", chain("", "", tokens), residency.Device, 0, 0)
	e.must(batchFrom(t, 0, stores([]any{34}, 33, tokens, 16, nil)))
	if e.counts.unnamed.Load() != 2 || e.counts.orphans.Load() != 1 {
		t.Errorf("%d unnamed, %d orphans", e.counts.unnamed.Load(), e.counts.orphans.Load())
	}
	rows := e.index.Usage(10)
	if len(rows) != 3 || rows[0].Adapter != "tune" || rows[0].Blocks != 3 {
		t.Errorf("%+v", rows)
	}
}

// TestUnusable checks that impossible values are left out and that an unreadable batch ends all
// knowledge. A claimed length must not take memory.
func TestUnusable(t *testing.T) {
	e := newEngine(t, 3)
	e.must(batchFrom(t, 0, stores([]any{1, 2}, nil, count(1, 31), 16, nil), stores([]any{1}, nil, count(1, 16), 0, nil),
		stores([]any{1}, nil, count(1, 16), 1<<30, nil), stores([]any{"x", 1.5}, nil, count(1, 32), 16, nil),
		fields{"type": 5}, []any{}, []any{7}, fields{}))
	if e.known.blocks != 0 || e.counts.unusable.Load() != 4 || e.counts.unknown.Load() != 4 {
		t.Errorf("%d blocks, %d unusable, %d unknown", e.known.blocks, e.counts.unusable.Load(),
			e.counts.unknown.Load())
	}
	e.must(batchFrom(t, 0, stores([]any{1, 2, 3, 4, 5}, nil, count(1, 80), 16, nil)))
	e.expect("more than fit", chain("", "", count(1, 80)), residency.Device, residency.Device, residency.Device, 0, 0)
	if e.counts.overflow.Load() != 2 {
		t.Errorf("%d beyond the bound", e.counts.overflow.Load())
	}
	for name, payload := range map[string][]byte{
		"empty": {}, "nothing": {0xc0}, "cut": batchFrom(t, 0, stores([]any{1}, nil, count(1, 16), 16, nil))[:60],
		"more behind":       append(batchFrom(t, 0), 1),
		"claims 4 G events": {0x92, 0x01, 0xdd, 0xff, 0xff, 0xff, 0xff}, "claims 4 G fields": {0x92, 0x01, 0x91, 0xdf, 0xff, 0xff, 0xff, 0xff},
		"claims 4 GB of text": {0x92, 0xdb, 0xff, 0xff, 0xff, 0xff, 0x90},
		"deep":                append(bytes.Repeat([]byte{0x91}, 100_000), 0xc0),
		"an event is text":    {0x92, 0x01, 0x91, 0xa1, 'x'}, "no events": {0x91, 0x01}, "reserved": {0x92, 0x01, 0x91, 0x92, 0xa1, 'x', 0xc1},
		"an unreadable removal": batchFrom(t, 0, fields{"type": "BlockRemoved", "block_hashes": "all"}),
	} {
		if err := e.apply(payload); err == nil {
			t.Errorf("%s: it was taken", name)
		}
	}
	e.expect("after all of that", chain("", "", count(1, 80)), residency.Device, residency.Device, residency.Device,
		0, 0)
}

// TestOddBlocks checks blocks whose size is no multiple of 16. The blocks count where a block of 16
// ends.
func TestOddBlocks(t *testing.T) {
	for _, size := range []int{1, 2, 5, 8, 15, 17, 24, 100} {
		e := newEngine(t, 1000)
		tokens := count(1, 6*size)
		e.must(batchFrom(t, 0, stores([]any{1, 2, 3}, nil, tokens[:3*size], size, nil)))
		e.must(batchFrom(t, 0, stores([]any{4, 5}, 3, tokens[3*size:5*size], size, nil)))
		e.must(batchFrom(t, 0, stores([]any{6}, 5, tokens[5*size:], size, nil)))
		all := chain("", "", tokens)
		e.expect("all", all, residency.Device)
		e.must(batchFrom(t, 0, removes([]any{6}, "GPU")))
		left := 5 * size / 16
		e.expect("without the last", all[:left], residency.Device)
		e.expect("the last", all[left:], 0)
		e.must(batchFrom(t, 0, removes([]any{5, 4, 3, 2, 1}, "GPU")))
		e.expect("none", all, 0)
		if st := e.index.Stats(); st.Blocks != 0 || len(e.known.table.tails) != 0 || st.Waiting != 0 {
			t.Errorf("size %d: %+v, %d tails", size, st, len(e.known.table.tails))
		}
	}
}
