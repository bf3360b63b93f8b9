package kvevents

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kvcached/block"
	"github.com/cognitora/dataplane/kvcached/residency"
)

// used is the CPU time that the process has used. What is counted by it does not depend on what else the machine does.
func used(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkApply decodes batches, computes digests and applies them to the index of a daemon: 16,384 blocks of 16 tokens that are stored and then
// removed, both of which count.
func BenchmarkApply(b *testing.B) {
	const prompt, prompts = 64, 256 // blocks
	for _, size := range []int{16, 64} {
		for _, form := range []string{"map", "array"} {
			b.Run(fmt.Sprintf("%s/%d", form, size), func(b *testing.B) {
				batches := benchBatches(b, form, size, prompt, prompts)
				e := newEngine(b, 1<<20)
				var events []residency.Event
				digests := make([]block.Digest, 0, reportDigests)
				number, blocks := uint64(0), 0
				apply := func(batches [][]byte) time.Duration {
					began := used(b)
					for _, payload := range batches {
						if err := e.known.apply(payload); err != nil {
							b.Fatal(err)
						}
						for e.out.size() > 0 {
							number++
							events, digests = e.out.take(events[:0], digests[:0], space.String())
							if err := e.index.Report(&residency.Report{Engine: "e", Epoch: 1, Number: number, Fresh: number == 1, Events: events}); err != nil {
								b.Fatal(err)
							}
						}
					}
					return used(b) - began
				}
				var storing, removing time.Duration
				b.ReportAllocs()
				for b.Loop() {
					storing += apply(batches[:prompts])
					removing += apply(batches[prompts:])
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

// benchBatches are batches of one prompt each, and then of the removals of all, with tokens and hashes as they are in the field.
func benchBatches(b *testing.B, form string, size, prompt, prompts int) (batches [][]byte) {
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
			[]string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx", "kv_cache_spec_kind"},
			hashes, nil, tokens, size, nil, "GPU", nil, extra, 0, "full_attention")))
	}
	for p := range prompts {
		var events []any
		for i := own - 1; i >= 0; i-- {
			events = append(events, record("BlockRemoved", []string{"block_hashes", "medium", "group_idx"}, []any{at(p, i)}, "GPU", 0))
		}
		batches = append(batches, batchFrom(b, 0, events...))
	}
	return batches
}
