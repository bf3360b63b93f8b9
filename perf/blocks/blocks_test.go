package blocks

import (
	"testing"

	"github.com/cognitora/dataplane/perf/trace"
)

// TestReplayOfBoundedCaches checks each request of a replay against simple sets.
func TestReplayOfBoundedCaches(t *testing.T) {
	const capacity = 10_000
	r, err := New(trace.Generator{Seed: 1, Requests: 2000}.Source(), Options{Nodes: 4, Capacity: capacity, Lead: 3})
	if err != nil {
		t.Fatal(err)
	}
	held := make([]map[uint64]bool, r.Nodes)
	for i := range held {
		held[i] = map[uint64]bool{}
	}
	for i := range r.Ops {
		op := &r.Ops[i]
		h := held[op.Node]
		for n, key := range op.Prompt {
			if h[key] != (n < op.Held) {
				t.Fatalf("request %d, block %d: held is %v, want %v", i, n, h[key], n < op.Held)
			}
		}
		for _, key := range op.Removed {
			if !h[key] {
				t.Fatalf("request %d removes a block that node %d does not hold", i, op.Node)
			}
			delete(h, key)
		}
		for _, key := range op.Prompt {
			h[key] = true
		}
		if len(h) > capacity {
			t.Fatalf("request %d: node %d holds %d blocks", i, op.Node, len(h))
		}
	}
	if r.Hits == 0 || r.Removed == 0 {
		t.Fatalf("%d hits and %d blocks removed: nothing was tested", r.Hits, r.Removed)
	}
}

// TestKeysFollowTheTrace: prompts that share ids share their keys, except for the first id.
func TestKeysFollowTheTrace(t *testing.T) {
	a := Keys(&trace.Request{InputLength: 3*trace.BlockTokens - 17, HashIDs: []int64{0, 1, 2}}, 0)
	b := Keys(&trace.Request{InputLength: 2 * trace.BlockTokens, HashIDs: []int64{0, 1}}, 0)
	c := Keys(&trace.Request{InputLength: 2 * trace.BlockTokens, HashIDs: []int64{0, 3}}, 0)
	if len(a) != 3*perID-2 || len(b) != 2*perID {
		t.Fatalf("%d and %d blocks", len(a), len(b))
	}
	for i := range b {
		if a[i] != b[i] || b[i] == c[i] {
			t.Fatalf("block %d", i)
		}
	}
	seen := map[uint64]bool{}
	for _, k := range a {
		if seen[k] {
			t.Fatal("a key appears twice")
		}
		seen[k] = true
	}
}
