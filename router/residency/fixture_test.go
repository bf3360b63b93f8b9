package residency

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/blocks"
)

// keys is a hashed chain.
type keys []Key

func (k *keys) Blocks() int   { return len(*k) }
func (k *keys) Key(i int) Key { return (*k)[i] }

// made returns a chain of n blocks. Chains of different seeds share no block.
func made(seed, n int) keys { return keysOf(blocks.Chain(seed, n)) }

func keysOf(words []uint64) keys {
	k := make(keys, len(words))
	for i, w := range words {
		k[i] = Key(w)
	}
	return k
}

// seeded returns a random source. A failed test logs the seed of its source.
func seeded(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// feed numbers one node's batches.
type feed struct {
	x    *Index
	ref  Ref
	next uint64
}

func (f *feed) apply(t testing.TB, events ...Event) {
	t.Helper()
	if err := f.x.Apply(f.ref, f.next, events); err != nil {
		t.Fatalf("batch %d: %v", f.next, err)
	}
	f.next++
}

func (f *feed) store(t testing.TB, parent Key, keys []Key) {
	t.Helper()
	f.apply(t, Event{Kind: Stored, Parent: parent, Keys: keys})
}

func join(t testing.TB, x *Index, n int) []*feed {
	t.Helper()
	feeds := make([]*feed, n)
	for i := range feeds {
		feeds[i] = &feed{x: x, ref: x.Join()}
		if feeds[i].ref == 0 {
			t.Fatalf("node %d got no place", i)
		}
	}
	return feeds
}

func refsOf(feeds []*feed) []Ref {
	refs := make([]Ref, len(feeds))
	for i, f := range feeds {
		refs[i] = f.ref
	}
	return refs
}

func lookup(x *Index, chain keys, refs []Ref) []int32 {
	matched := make([]int32, len(refs))
	x.Lookup(&chain, refs, matched)
	return matched
}
