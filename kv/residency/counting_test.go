package residency

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestCounting: what Counting counts is what a watcher is told of, over random changes in
// namespaces of several ranks, layers and sizes of objects. Each block of the index has a reason.
func TestCounting(t *testing.T) {
	x, rng := New(Options{}), rand.New(rand.NewPCG(3, 4))
	var spaces []string
	for _, model := range []struct{ tokens, tp, pp uint32 }{{16, 1, 1}, {16, 2, 2}, {48, 1, 1}, {48, 2, 1}} {
		spaces = append(spaces, ranksOf("m", model.tokens, model.tp, model.pp)...)
	}
	chain := chainOf("m", 30)
	for round := range 40 {
		for range 50 {
			n, err := block.ParseNamespace(spaces[rng.IntN(len(spaces))])
			if err != nil {
				t.Fatal(err)
			}
			per := int(n.Tokens) / block.Tokens
			from := rng.IntN(len(chain)/per) * per
			c := object(n.String(), chain, from, from+per-1, []Tiers{Host, Disk}[rng.IntN(2)], rng.IntN(4) > 0, true)
			c.Addr.Layer = []uint32{0, block.LayerAll, block.LayerAll, 3}[rng.IntN(4)]
			if rng.IntN(8) == 0 && from > 0 { // of another prompt, whose earlier blocks are not known
				c.Addr.Digest, c.Parent = block.Digest{byte(rng.Int()), 1}, block.Digest{byte(rng.Int()), 2}
				c.Names = nil
			}
			x.Apply(c)
		}
		told := map[string][2]int{} // counted and unplaced, by namespace
		w := x.Watch(WatchOptions{})
		for b := (Batch{}); b.Part != Synced; {
			if err := w.Next(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
			for _, k := range b.Blocks {
				of := told[b.Namespaces[k.Namespace]]
				if k.Position == 0 {
					of[1]++
				} else {
					of[0]++
				}
				told[b.Namespaces[k.Namespace]] = of
			}
		}
		w.Close()
		list, err := x.Counting(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all, ranked := 0, 0
		for _, c := range list {
			if of := told[c.Namespace]; of[0] != c.Counted || of[1] != c.Unplaced {
				t.Fatalf("round %d: %+v, and %v are told", round, c, of)
			}
			delete(told, c.Namespace)
			all += c.Counted + c.Unplaced + c.Incomplete + c.OtherLayers
			if n, _ := block.ParseNamespace(c.Namespace); n.TP > 1 {
				ranked += c.Counted + c.Unplaced + c.Incomplete
			}
		}
		if own := int(x.Stats().OwnBlocks); len(told) > 0 || all > own || all == 0 || ranked == 0 && round > 20 {
			t.Fatalf("round %d: %d blocks of %d, %v are told besides", round, all, own, told)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := x.Counting(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// BenchmarkCounting counts 800,000 blocks, of one rank and of eight.
func BenchmarkCounting(b *testing.B) {
	const blocks = 800_000
	for _, ranks := range []uint32{1, 8} {
		b.Run(fmt.Sprint(ranks, " ranks"), func(b *testing.B) {
			x, spaces := New(Options{}), ranksOf("m", 16, ranks, 1)
			chain := chainOf("m", blocks/len(spaces))
			for i := range chain {
				for _, space := range spaces {
					x.Apply(change(space, chain, i, Host, true))
				}
			}
			for b.Loop() {
				if list, err := x.Counting(b.Context()); err != nil || list[0].Counted != len(chain) {
					b.Fatal(list, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/blocks, "ns/block")
		})
	}
}
