package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/lmcache"
	"github.com/cognitora/dataplane/kv/residency"
)

// withLMCache makes an engine whose chunks of size tokens are named.
func withLMCache(t testing.TB, size int) *engine {
	e := newEngine(t, 100_000)
	e.known.chunks = newChunker(&Chunks{Source: alias.Source{Scheme: alias.LMCache, First: lmcache.First("0")},
		Tokens: size}, &e.counts)
	return e
}

// told returns the chunks that wait to be told, and forgets them.
func (e *engine) told() (all []alias.Chunk) {
	for {
		some, more := e.known.chunks.take(e.known.table)
		if all = append(all, some...); !more {
			return all
		}
	}
}

// chunksOf returns the full chunks of a prompt for the base model, computed chunk by chunk.
func chunksOf(tokens []uint32, size int) (all []alias.Chunk) {
	digests, name := chain("", "", tokens), lmcache.First("0")
	per := size / block.Tokens
	for i := 0; (i+1)*size <= len(tokens); i++ {
		name = lmcache.Next(name, tokens[i*size:(i+1)*size])
		c := alias.Chunk{Name: name}
		if i > 0 {
			c.Parent = block.NameOf(&digests[i*per-1])
		}
		for _, d := range digests[i*per : (i+1)*per] {
			c.Blocks = append(c.Blocks, d[:block.NameBytes]...)
		}
		all = append(all, c)
	}
	return all
}

func (e *engine) expectChunks(what string, want []alias.Chunk) {
	e.t.Helper()
	if got := e.told(); fmt.Sprintf("%x", got) != fmt.Sprintf("%x", want) {
		e.t.Errorf("%s: %d chunks, want %d: %x, want %x", what, len(got), len(want), got, want)
	}
}

// numbers returns the hashes of blocks from..to of a prompt: number of the prompt, number of the
// block.
func numbers(prompt, from, to int) (all []any) {
	for i := from; i < to; i++ {
		all = append(all, 1000*prompt+i)
	}
	return all
}

// TestChunksOfARecording names the chunks of a prompt as a real LMCache did, from blocks of each
// size, in one event and in many.
func TestChunksOfARecording(t *testing.T) {
	var golden struct {
		Prompt []uint32
		Names  []string
	}
	text, err := os.ReadFile("../lmcache/testdata/chunk_names.json")
	if err == nil {
		err = json.Unmarshal(text, &golden)
	}
	if err != nil || len(golden.Names) != 2 {
		t.Fatal(err)
	}
	want := chunksOf(golden.Prompt, 256)
	for i, name := range golden.Names {
		if got := strconv.FormatUint(uint64(want[i].Name), 16); got != name {
			t.Errorf("chunk %d is %s, was %s", i, got, name)
		}
	}
	for _, size := range []int{16, 32, 64, 128, 256} {
		n := len(golden.Prompt) / size
		for _, step := range []int{1, 3, n} {
			e := withLMCache(t, 256)
			for from := 0; from < n; from += step {
				var parent any
				if from > 0 {
					parent = 1000 + from - 1
				}
				to := min(from+step, n)
				e.must(batchFrom(t, 0, stores(numbers(1, from, to), parent, golden.Prompt[from*size:to*size], size,
					nil)))
			}
			e.expectChunks(fmt.Sprintf("blocks of %d, %d at once", size, step), want)
			e.known.chunks.repeat()
			e.expectChunks("told again", want)
			e.must(batchFrom(t, 0, stores(numbers(1, 0, n), nil, golden.Prompt[:n*size], size, nil)))
			e.expectChunks("known already", nil)
			e.must(batchFrom(t, 0, fields{"type": "AllBlocksCleared"}))
			e.known.chunks.repeat()
			e.expectChunks("cleared", nil)
		}
	}
}

// TestChunksOfOthers checks that prompts whose chunks LMCache cannot tell from those of others, or
// whose names do not follow from the tokens, are never named.
func TestChunksOfOthers(t *testing.T) {
	tokens := count(1, 512)
	for what, batch := range map[string][]byte{
		"adapter": batchFrom(t, 0, stores(numbers(1, 0, 32), nil, tokens, 16, fields{"lora_name": "sql",
			"lora_id": 1})),
		"number": batchFrom(t, 0, stores(numbers(1, 0, 32), nil, tokens, 16, fields{"lora_id": 1})),
		"salt":   batchFrom(t, 0, stores(numbers(1, 0, 32), nil, tokens, 16, fields{"cache_salt": "a"})),
		"old salt": batchFrom(t, 0, stores(numbers(1, 0, 32), nil, tokens, 16,
			fields{"extra_keys": []any{[]any{"a"}}})),
		"image": batchFrom(t, 0, stores(numbers(1, 0, 32), nil, tokens, 16, fields{"extra_keys": []any{nil,
			[]any{"hash"}}})),
		"odd block":     batchFrom(t, 0, stores(numbers(1, 0, 21), nil, tokens, 24, nil)),
		"48 tokens":     batchFrom(t, 0, stores(numbers(1, 0, 10), nil, tokens, 48, nil)),
		"recorded salt": recordedBatch(t, "int-blockstored-cachesalt"), "recorded adapter": recordedBatch(t,
			"int-blockstored-lora-sql"),
	} {
		e := withLMCache(t, 64)
		e.must(batch)
		e.must(batchFrom(t, 0, stores([]any{5000, 5001, 5002, 5003}, 1031, count(9000, 64), 16, nil)))
		if e.known.chunks.repeat(); what == "odd block" || len(e.known.table.slots) > 0 {
			e.expectChunks(what, nil)
		} else {
			t.Errorf("%s: no block is known", what)
		}
	}
	e := withLMCache(t, 64)
	e.must(recordedBatch(t, "int-blockstored-lora-base"))
	e.expectChunks("the base model", chunksOf(tokensOf(t, recordedBatch(t, "int-blockstored-lora-base")), 64))
}

// TestChunkOfLostBlocks removes a block in the middle of a chunk, and gives its slot to another
// one. The chunk is lost, and not named wrongly.
func TestChunkOfLostBlocks(t *testing.T) {
	e := withLMCache(t, 64)
	tokens := count(1, 64)
	e.must(batchFrom(t, 0, stores(numbers(1, 0, 3), nil, tokens[:48], 16, nil), removes([]any{1001}, "GPU"),
		stores(numbers(2, 0, 1), nil, count(500, 16), 16, nil), stores(numbers(1, 3, 4), 1002, tokens[48:], 16, nil)))
	e.expectChunks("without a block", nil)
	if n := e.counts.chunksLost.Load(); n != 1 {
		t.Errorf("%d chunks were lost", n)
	}
	e.must(batchFrom(t, 0, stores(numbers(1, 4, 8), 1003, count(65, 64), 16, nil)))
	e.expectChunks("after a chunk without a name", nil)
}

// TestChunksWaitWithoutBlocks: chunks that were named and not told yet are told although the engine
// has lost their blocks meanwhile, because LMCache has them: before a snapshot, after an error of
// the sink, and after the engine's restart. Those of another model are not.
func TestChunksWaitWithoutBlocks(t *testing.T) {
	tokens := count(1, 128)
	want := chunksOf(tokens, 64)
	e := withLMCache(t, 64)
	e.must(batchFrom(t, 0, stores(numbers(1, 0, 8), nil, tokens, 16, nil)))
	e.must(batchFrom(t, 0, removes(numbers(1, 0, 8), "GPU")))
	e.known.chunks.repeat()
	e.expectChunks("a snapshot", want)
	e.known.chunks.repeat()
	e.expectChunks("told", nil)
	e.known.chunks.untold(slices.Clone(want[:1]))
	e.known.chunks.untold(slices.Clone(want[1:]))
	e.expectChunks("an error", []alias.Chunk{want[1], want[0]})
	e.known.chunks.untold(slices.Clone(want))
	e.known.forget()
	e.expectChunks("a restart", want)
	e.known.chunks.untold(slices.Clone(want))
	e.known.chunks.withdraw()
	e.expectChunks("another model", nil)
	e.known.chunks.untold(make([]alias.Chunk, maxChunks+3))
	if n := len(e.known.chunks.ready); n != maxChunks || e.known.chunks.counts.chunksLost.Load() != 3 {
		t.Errorf("%d wait", n)
	}
}

// TestChunksOfATree stores prompts that share beginnings, in events of any length, and evicts
// blocks. Each told chunk is one of a prompt as it was sent. If nothing is evicted, all chunks are
// told.
func TestChunksOfATree(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		e := withLMCache(t, 64)
		size := rapid.SampledFrom([]int{16, 32, 64}).Draw(rt, "block")
		evicts := rapid.Bool().Draw(rt, "evicts")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		right, told := map[string]bool{}, map[string]bool{}
		known := map[string]any{} // hash of a prompt's beginning
		var prompts [][]uint32
		for n := range rapid.IntRange(1, 12).Draw(rt, "prompts") {
			var tokens []uint32
			if n > 0 && random.IntN(3) > 0 {
				tokens = slices.Clone(prompts[random.IntN(n)])
				tokens = tokens[:random.IntN(len(tokens)/size+1)*size]
			}
			tokens = append(tokens, count(100*n, size*(1+random.IntN(20)))...)
			prompts = append(prompts, tokens)
			for _, c := range chunksOf(tokens, 64) {
				right[fmt.Sprintf("%x", c)] = true
			}
			hash := func(i int) string { return fmt.Sprint(tokens[:(i+1)*size]) }
			for i := 0; i < len(tokens)/size; {
				if _, ok := known[hash(i)]; ok &&
					random.IntN(4) > 0 { // the engine has it; sometimes it computes it again
					i++
					continue
				}
				var hashes []any
				var parent any
				if i > 0 {
					parent = known[hash(i-1)]
				}
				first := i
				for more := 1 + random.IntN(6); i < len(tokens)/size && more > 0; more-- {
					if known[hash(i)] == nil {
						known[hash(i)] = len(known) + 1
					}
					hashes = append(hashes, known[hash(i)])
					i++
				}
				e.must(batchFrom(t, 0, stores(hashes, parent, tokens[first*size:i*size], size, nil)))
				if evicts && random.IntN(4) == 0 {
					for _, h := range known {
						e.must(batchFrom(t, 0, removes([]any{h}, "GPU")))
						break
					}
				}
			}
			if random.IntN(3) == 0 {
				e.known.chunks.repeat()
			}
			for _, c := range e.told() {
				told[fmt.Sprintf("%x", c)] = true
			}
		}
		for c := range told {
			if !right[c] {
				rt.Fatalf("chunk %s is of no prompt", c)
			}
		}
		if !evicts && len(told) != len(right) {
			rt.Fatalf("%d chunks are told, %d are there", len(told), len(right))
		}
	})
}

// TestManyChunks tells no more chunks at once than a call takes, and drops what does not fit.
func TestManyChunks(t *testing.T) {
	e := withLMCache(t, 16)
	n := maxChunks + 100
	hashes := make([]any, n)
	for i := range hashes {
		hashes[i] = i + 1
	}
	e.must(batchFrom(t, 0, stores(hashes, nil, count(1, 16*n), 16, nil)))
	if lost := e.counts.chunksLost.Load(); lost != 100 {
		t.Errorf("%d chunks do not fit", lost)
	}
	for _, again := range []bool{false, true} {
		if again {
			e.known.chunks.repeat()
		}
		total := 0
		for more := true; more; {
			var some []alias.Chunk
			if some, more = e.known.chunks.take(e.known.table); len(some) > alias.MaxTold {
				t.Errorf("%d at once", len(some))
			}
			total += len(some)
		}
		if want := map[bool]int{false: maxChunks, true: n}[again]; total != want {
			t.Errorf("%d chunks, want %d", total, want)
		}
	}
}

// teller records what it is told.
type teller struct {
	mu     sync.Mutex
	source alias.Source
	all    []alias.Chunk
}

func (s *teller) TellChunks(from *alias.Source, all []alias.Chunk) (string, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = *from
	for _, c := range all {
		c.Blocks = bytes.Clone(c.Blocks)
		s.all = append(s.all, c)
	}
	told := *from
	told.Model = "told" // as a daemon that knows the model of vLLM's tier
	return told.Namespace(64).String(), len(all) - 1, nil
}

// TestFollowerTellsChunks follows a publisher. The sink learns of all chunks, those before the
// follower's start too, and of all again after the follower has begun anew. Reports say that the
// engine reads the namespace that the sink names.
func TestFollowerTellsChunks(t *testing.T) {
	p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
	for i := range 8 {
		p.keep(turn(t, prompt, i))
	}
	sink := &teller{}
	o := p.endpoints()
	from := alias.Source{Scheme: alias.LMCache, Keys: "key1;resp.0;", Model: "/m", DType: "half", World: 1,
		First: lmcache.First("0"), Served: "-", Revision: "-"}
	o.Chunks = &Chunks{Source: from, Tokens: 64, Sink: sink}
	f := follow(t, o)
	f.awaits("what was before", prompt, 8)
	for i := 8; i < blocks; i++ {
		p.say(turn(t, prompt, i))
	}
	f.awaits("everything", prompt, blocks)
	want := chunksOf(prompt, 64)
	eventually(t, "all chunks are told", func() bool {
		sink.mu.Lock()
		defer sink.mu.Unlock()
		seen := map[string]bool{}
		for _, c := range sink.all {
			seen[fmt.Sprintf("%x", c)] = true
		}
		for _, c := range want {
			if !seen[fmt.Sprintf("%x", c)] {
				return false
			}
		}
		return len(seen) == len(want) && sink.source.Served == "m" && sink.source.Keys == "key1;resp.0;"
	})
	from.Model, from.Served = "told", "m"
	reads := residency.Reader{Node: "e", Namespaces: []string{from.Namespace(64).String()}}
	eventually(t, "reports say what the engine reads", func() bool {
		all := f.sink.Readers()
		return len(all) == 1 && reflect.DeepEqual(all[0], reads)
	})
	if s := f.Stats(); s.Chunks+s.ChunksRefused < uint64(len(want)) || s.ChunksRefused == 0 || s.ChunksLost != 0 {
		t.Errorf("%+v", s)
	}
}

// shy takes chunks from the second attempt on.
type shy struct{ attempts []time.Time }

func (s *shy) TellChunks(_ *alias.Source, all []alias.Chunk) (string, int, error) {
	if s.attempts = append(s.attempts, time.Now()); len(s.attempts) == 1 {
		return "", 0, ErrNotYet
	}
	return "", len(all), nil
}

// TestIdleEngineIsToldAgain checks that chunks that the sink does not take yet are told again after
// retryChunks though the engine does nothing, and then no more.
func TestIdleEngineIsToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &shy{}
		o := Options{Engine: "e", Model: func() string { return "m" }, Sink: residency.New(residency.Options{}),
			Chunks: &Chunks{Source: alias.Source{Scheme: alias.VLLMTier, Keys: "key1;s3.b;", Engine: "e", World: 1,
				Revision: "-"}, Sink: sink}, Logger: slog.New(slog.DiscardHandler)}
		f := New(o)
		if !f.awaitModel(t.Context()) {
			t.Fatal("no model")
		}
		f.known.chunks.tokens = 16
		f.known.chunks.ready = objects("", "", prompt[:16], 16, []any{7})
		f.follow()
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			f.reportAll(ctx)
		}()
		time.Sleep(time.Minute)
		stop()
		<-ended
		if at := sink.attempts; len(at) != 2 || at[1].Sub(at[0]) != retryChunks || f.Stats().Chunks != 1 {
			t.Errorf("attempts at %v, %+v", at, f.Stats())
		}
	})
}

// TestReadsNothing checks that reports say that an engine without a cache can read nothing, and
// that they are silent about other engines.
func TestReadsNothing(t *testing.T) {
	for _, nothing := range []bool{true, false} {
		p := publish(t, "127.0.0.1:0", "127.0.0.1:0")
		p.keep(turn(t, prompt, 0))
		o := p.endpoints()
		o.ReadsNothing = nothing
		f := follow(t, o)
		f.awaits("a block", prompt, 1)
		if all := f.sink.Readers(); len(all) == 1 != nothing || nothing && len(all[0].Namespaces) > 0 {
			t.Errorf("%v: %v", nothing, all)
		}
	}
}

// withTier makes an engine each of whose blocks is an object of vLLM's tier.
func withTier(t testing.TB) *engine {
	e := newEngine(t, 100_000)
	e.known.chunks = newChunker(&Chunks{Source: alias.Source{Scheme: alias.VLLMTier}}, &e.counts)
	return e
}

// objects returns the chunks that the blocks of a prompt are, by the numbers of the blocks.
func objects(adapter, salt string, tokens []uint32, size int, hashes []any) (all []alias.Chunk) {
	digests, per := chain(adapter, salt, tokens), size/block.Tokens
	for i, h := range hashes {
		c := alias.Chunk{Name: alias.Name(h.(int))}
		if i > 0 {
			c.Parent = block.NameOf(&digests[i*per-1])
		}
		for _, d := range digests[i*per : (i+1)*per] {
			c.Blocks = append(c.Blocks, d[:block.NameBytes]...)
		}
		all = append(all, c)
	}
	return all
}

// TestTierBlocks names each block of the base model, of an adapter and with a salt by its hash, and
// again after repeat as long as the engine has it.
func TestTierBlocks(t *testing.T) {
	e, tokens := withTier(t), count(1, 96)
	e.must(batchFrom(t, 0, stores(numbers(1, 0, 2), nil, tokens[:64], 32, nil),
		stores(numbers(1, 2, 3), 1001, tokens[64:], 32, nil)))
	e.expectChunks("the base model", objects("", "", tokens, 32, numbers(1, 0, 3)))
	e.must(batchFrom(t, 0, stores(numbers(2, 0, 3), nil, tokens, 32, fields{"lora_name": "sql"})))
	e.expectChunks("an adapter", objects("sql", "", tokens, 32, numbers(2, 0, 3)))
	e.must(batchFrom(t, 0, stores(numbers(3, 0, 3), nil, tokens, 32,
		fields{"extra_keys": []any{[]any{"salt"}, nil, []any{"image"}}})))
	e.expectChunks("a salt, and an image in the third block", objects("", "salt", tokens, 32, numbers(3, 0, 2)))
	e.must(batchFrom(t, 0, removes(append(numbers(2, 0, 3), numbers(3, 0, 2)...), "GPU"), removes([]any{1001}, "GPU")))
	e.known.chunks.repeat()
	all := objects("", "", tokens, 32, numbers(1, 0, 3))
	e.expectChunks("what is left", []alias.Chunk{all[0], all[2]})
}

// TestTierBlocksOfOthers names no blocks whose hash or tokens do not say what an object has.
func TestTierBlocksOfOthers(t *testing.T) {
	for what, events := range map[string][]any{
		"bytes":     {stores([]any{bytes.Repeat([]byte{7}, 32)}, nil, count(1, 32), 32, nil)},
		"short":     {stores(numbers(1, 0, 2), nil, count(1, 16), 8, nil)},
		"odd":       {stores(numbers(1, 0, 2), nil, count(1, 48), 24, nil)},
		"long":      {stores(numbers(1, 0, 1), nil, count(1, 1024), 1024, nil)},
		"two sizes": {stores(numbers(1, 0, 1), nil, count(1, 8), 8, nil), stores(numbers(1, 1, 2), 1000, count(9, 32), 32, nil)},
		"groups": {stores(numbers(1, 0, 1), nil, count(1, 32), 32, nil), stores(numbers(1, 0, 1), nil, count(1, 32), 32,
			fields{"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}),
			stores(numbers(1, 1, 2), 1000, count(33, 32), 32, nil)},
	} {
		e := withTier(t)
		e.must(batchFrom(t, 0, events...))
		e.known.chunks.repeat()
		e.expectChunks(what, nil)
	}
}

// TestUntoldOfAnotherSize takes back chunks of the size that blocks had before the engine began
// anew. The daemon takes only chunks of one size at once.
func TestUntoldOfAnotherSize(t *testing.T) {
	c := &chunker{sizes: true, tokens: 32}
	short, long := chunksOf(count(1, 32), 16), chunksOf(count(1, 32), 32)
	c.untold(append(short, long...))
	if len(c.ready) != 1 || c.ready[0].Name != long[0].Name {
		t.Errorf("%+v", c.ready)
	}
}
