package prefix

import (
	"fmt"
	"testing"
	"time"
)

const (
	shortPrompt = 2 << 10
	longPrompt  = 220 << 10
)

// served returns an index in which each text was sent to each of eight nodes.
func served(tb testing.TB, texts ...[]byte) (*Index, []Ref) {
	x := NewIndex(Options{})
	tb.Cleanup(x.Close)
	var refs []Ref
	for i := range 8 {
		refs = append(refs, x.Join(fmt.Sprint("node-", i)))
	}
	for _, text := range texts {
		for _, ref := range refs {
			x.hold(chain(text), ref, time.Now())
		}
	}
	return x, refs
}

func TestNoAllocations(t *testing.T) {
	text := prompt("p", 200)
	x, refs := served(t, text)
	c, matched := chain(text), make([]int32, len(refs))
	x.Match(c, refs, matched, nil)
	x.Record(c, refs[0], time.Now())
	check := func(what string, f func()) {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	var seed Digest
	check("Seed", func() { seed = Seed("meta-llama/Llama-3.1-8B-Instruct", "", "tenant") })
	check("HashTo", func() { c.Reset(seed, text, nil); c.HashTo(c.Blocks()) })
	seed = Seed("model", "", "")
	check("Match", func() { c.Reset(seed, text, nil); x.Match(c, refs, matched, nil) })
	if matched[0] != 200 {
		t.Errorf("matched %d blocks, want 200", matched[0])
	}
	check("Record", func() { c.Reset(seed, text, nil); x.Record(c, refs[1], time.Now()) })
	check("Begun", func() { x.Begun(c, refs[1]) })
	o := Observation{Ref: refs[1], Believed: 200, PromptTokens: 3200, CachedTokens: 3200, DispatchedAt: time.Now()}
	check("Observe", func() { x.Observe(c, o) })
}

func BenchmarkMatch(b *testing.B) {
	for _, size := range []int{shortPrompt, longPrompt} {
		for _, seen := range []bool{true, false} {
			b.Run(fmt.Sprintf("%dKiB/seen=%v", size>>10, seen), func(b *testing.B) {
				benchMatch(b, size, func(x *Index, c *Chain, ref Ref) {
					if seen {
						x.hold(c, ref, time.Now())
					}
				})
			})
		}
		b.Run(fmt.Sprintf("%dKiB/pending", size>>10), func(b *testing.B) {
			benchMatch(b, size, func(x *Index, c *Chain, ref Ref) { x.Record(c, ref, time.Now()) })
		})
	}
}

// benchMatch looks up a prompt that send has sent to each node.
func benchMatch(b *testing.B, size int, send func(*Index, *Chain, Ref)) {
	text := prompt("p", size/BlockBytes)
	x, refs := served(b)
	for _, ref := range refs {
		send(x, chain(text), ref)
	}
	c, matched, coming := chain(text), make([]int32, len(refs)), make([]int32, len(refs))
	seed := Seed("model", "", "")
	b.ReportAllocs()
	for b.Loop() {
		c.Reset(seed, text, nil)
		x.Match(c, refs, matched, coming)
	}
}

// BenchmarkRecord measures the cost of a request after its dispatch, without the rest of the
// hashing.
func BenchmarkRecord(b *testing.B) {
	text := prompt("p", longPrompt/BlockBytes)
	x, refs := served(b, text)
	c := chain(text)
	c.HashTo(c.Blocks())
	b.ReportAllocs()
	for b.Loop() {
		x.Record(c, refs[0], time.Now())
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.Blocks()), "ns/block")
}

// BenchmarkBegun measures the cost of a first byte.
func BenchmarkBegun(b *testing.B) {
	x, refs := served(b)
	c := chain(prompt("p", longPrompt/BlockBytes))
	x.Record(c, refs[0], time.Now())
	b.ReportAllocs()
	for b.Loop() {
		x.Begun(c, refs[0])
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.Blocks()), "ns/block")
}

func BenchmarkObserve(b *testing.B) {
	text := prompt("p", longPrompt/BlockBytes)
	x, refs := served(b, text)
	c := chain(text)
	at := time.Now()
	x.Record(c, refs[0], at)
	o := Observation{Ref: refs[0], Believed: c.Blocks(), PromptTokens: 1000, CachedTokens: 1000, DispatchedAt: at}
	for b.Loop() {
		x.Observe(c, o)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.Blocks()), "ns/block")
}

// BenchmarkFull fills an index to its bound and reports its memory per block.
func BenchmarkFull(b *testing.B) {
	for b.Loop() {
		x := newIndex(Options{MaxBlocks: 1 << 20})
		ref := x.Join("a")
		for i := 0; x.Len() < 1<<20; i++ {
			x.Record(chain(prompt(fmt.Sprint(i), 1024)), ref, time.Now())
		}
		b.ReportMetric(x.bytesPerBlock(), "B/block")
	}
}
