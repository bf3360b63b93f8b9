package books

import (
	"math/rand/v2"
	"testing"
)

// BenchmarkEntry opens, counts and closes an entry of 32 blocks beside 64 others. Half of the
// blocks are shared.
func BenchmarkEntry(b *testing.B) {
	var book Book
	dice := rand.New(rand.NewPCG(1, 1))
	prompts := make([][]uint64, 65)
	for i := range prompts {
		parts := make([]int, 32)
		for k := range 16 {
			parts[16+k] = dice.IntN(1 << 30)
		}
		prompts[i] = chain(parts...)
	}
	entries := make([]Entry, 65)
	for i := range 64 {
		book.Open(&entries[i], Cost{Prefill: 256, Blocks: 32}, noon)
		entries[i].Count(prompts[i], nil)
	}
	e := &entries[64]
	b.ReportAllocs()
	for b.Loop() {
		book.Shared(prompts[64])
		book.Open(e, Cost{Prefill: 256, Blocks: 32}, noon)
		e.Count(prompts[64], nil)
		e.Begun(noon)
		e.Close(noon)
	}
}
