package events

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// applier applies batches and reports the changes, without allocating.
type applier struct {
	*engine
	events  []residency.Event
	digests []block.Digest
}

func newApplier(t testing.TB) *applier {
	return &applier{engine: newEngine(t, 1<<20), digests: make([]block.Digest, 0, reportDigests)}
}

// takes returns the CPU time of applying these batches.
func (a *applier) takes(batches [][]byte) time.Duration {
	began := used(a.t)
	for _, payload := range batches {
		if err := a.known.apply(payload); err != nil {
			a.t.Fatal(err)
		}
		for a.out.size() > 0 {
			a.number++
			a.events, a.digests = a.out.take(a.events[:0], a.digests[:0], space.String())
			if err := a.index.Report(&residency.Report{Engine: "e", Epoch: 1, Number: a.number, Fresh: a.number == 1,
				Events: a.events}); err != nil {
				a.t.Fatal(err)
			}
		}
	}
	return used(a.t) - began
}

// BenchmarkApply decodes batches, computes digests and applies them to the index of a daemon. It
// stores 16,384 blocks of 16 tokens and then removes them. A stored and a removed block each count
// as one.
func BenchmarkApply(b *testing.B) {
	const prompt, prompts = 64, 256 // in blocks
	for _, size := range []int{16, 64} {
		for _, form := range []string{"map", "array"} {
			b.Run(fmt.Sprintf("%s/%d", form, size), func(b *testing.B) {
				batches := benchBatches(b, form, size, prompt, prompts)
				e, blocks := newApplier(b), 0
				var storing, removing time.Duration
				b.ReportAllocs()
				for b.Loop() {
					storing += e.takes(batches[:prompts])
					removing += e.takes(batches[prompts:])
					blocks += prompt * prompts
				}
				if e.known.blocks != 0 || e.counts.orphans.Load() > 0 {
					b.Fatal(e.known.blocks, e.counts.orphans.Load())
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(blocks)/storing.Seconds(), "stored/cpu-s")
				b.ReportMetric(float64(blocks)/removing.Seconds(), "removed/cpu-s")
			})
		}
	}
}

// benchBatches returns one batch for each prompt, and then batches that remove all blocks. Tokens
// and hashes have realistic sizes.
func benchBatches(b testing.TB, form string, size, prompt, prompts int) (batches [][]byte) {
	own := prompt * block.Tokens / size
	at := func(p, i int) uint64 { return uint64(p+1)*0x9e3779b97f4a7c15 + uint64(i)*0xbf58476d1ce4e5b9 | 1<<63 }
	record := func(kind string, names []string, values ...any) any {
		if form == "array" {
			return append([]any{kind}, values...)
		}
		m := fields{"type": kind}
		for i, name := range names {
			m[name] = values[i]
		}
		return m
	}
	for p := range prompts {
		hashes, extra := make([]any, own), make([]any, own)
		tokens := make([]uint32, prompt*block.Tokens)
		for i := range tokens {
			tokens[i] = uint32(uint64(p*len(tokens)+i) * 2654435761 % 128_000)
		}
		for i := range hashes {
			hashes[i] = at(p, i)
		}
		batches = append(batches, batchFrom(b, 0, record("BlockStored",
			[]string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
				"extra_keys", "group_idx", "kv_cache_spec_kind"},
			hashes, nil, tokens, size, nil, "GPU", nil, extra, 0, "full_attention")))
	}
	for p := range prompts {
		var events []any
		for i := own - 1; i >= 0; i-- {
			events = append(events, record("BlockRemoved", []string{"block_hashes", "medium", "group_idx"},
				[]any{at(p, i)}, "GPU", 0))
		}
		batches = append(batches, batchFrom(b, 0, events...))
	}
	return batches
}
