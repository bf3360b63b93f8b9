package residency

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// branch extends the beginning to a length with blocks of this seed only.
func branch(beginning keys, seed, length int) keys {
	whole := append(keys{}, beginning...)
	own := made(seed, length)
	for i := len(beginning); i < length; i++ {
		leader := uint64(own[i-i%GroupBlocks])
		if first := i - i%GroupBlocks; first < len(beginning) {
			leader = uint64(beginning[first])
		}
		whole = append(whole, KeyOf(leader, uint64(own[i])>>placeBits, i))
	}
	return whole
}

// tree returns prompts with common beginnings: each is a path from the root.
func tree(r *rand.Rand, prompts, longest int) []keys {
	all := make([]keys, prompts)
	for i := range all {
		length := 1 + r.IntN(longest)
		var beginning keys
		if i > 0 {
			from := all[r.IntN(i)]
			beginning = from[:r.IntN(min(len(from), length)+1)]
		}
		all[i] = branch(beginning, i, length)
	}
	return all
}

// modelNode holds the blocks that a node should have.
type modelNode struct {
	feed
	held map[Key]bool
}

func (n *modelNode) leading(chain keys) int {
	for i, k := range chain {
		if !n.held[k] {
			return i
		}
	}
	return len(chain)
}

// step makes a random change to a node.
func (n *modelNode) step(t testing.TB, r *rand.Rand, prompts []keys) {
	chain := prompts[r.IntN(len(prompts))]
	lead := n.leading(chain)
	switch p := r.IntN(100); {
	case p < 50: // computes a prompt, or part of its missing blocks
		n.compute(t, chain, lead, lead+r.IntN(len(chain)-lead+1))
	case p < 55: // stores blocks that need not follow the node's other blocks
		from := r.IntN(len(chain))
		n.compute(t, chain, from, from+r.IntN(len(chain)-from+1))
	case p < 80: // removes the end of a prompt, the last block first
		n.giveUp(t, chain[r.IntN(lead+1):], func(i, n int) int { return n - 1 - i })
	case p < 92: // removes some blocks of a prompt in any order
		some := chain[r.IntN(len(chain)):]
		order := r.Perm(len(some))
		n.giveUp(t, some[:r.IntN(len(some)+1)], func(i, n int) int { return order[i] % n })
	case p < 96:
		n.apply(t, Event{Kind: Cleared})
		clear(n.held)
	case p < 98:
		n.next = r.Uint64N(1 << 40)
		if err := n.x.Restart(n.ref, n.next); err != nil {
			t.Fatal(err)
		}
		clear(n.held)
	default:
		n.x.Leave(n.ref)
		n.feed = feed{x: n.x, ref: n.x.Join()}
		clear(n.held)
	}
}

func (n *modelNode) compute(t testing.TB, chain keys, from, to int) {
	var parent Key
	if from > 0 {
		parent = chain[from-1]
	}
	n.store(t, parent, chain[from:to])
	for _, k := range chain[from:to] {
		n.held[k] = true
	}
}

// giveUp removes blocks one by one or together. order gives the block to remove as the i-th of n.
func (n *modelNode) giveUp(t testing.TB, chain keys, order func(i, n int) int) {
	var gone keys
	for i := range chain {
		k := chain[order(i, len(chain))]
		gone = append(gone, k)
		delete(n.held, k)
	}
	n.apply(t, Event{Kind: Removed, Keys: gone})
}

func check(t testing.TB, x *Index, nodes []*modelNode, prompts []keys) {
	t.Helper()
	audit(t, x)
	distinct := map[Key]bool{}
	refs := make([]Ref, len(nodes))
	for i, n := range nodes {
		refs[i] = n.ref
		for k := range n.held {
			distinct[k] = true
		}
	}
	for _, chain := range prompts {
		for i, got := range lookup(x, chain, refs) {
			if want := nodes[i].leading(chain); int(got) != want {
				t.Fatalf("node %d: %d of %d blocks, want %d", i, got, len(chain), want)
			}
		}
	}
	if st := x.Stats(); st.Nodes != len(nodes) || len(nodes) <= shardNodes && st.Blocks < len(distinct) ||
		st.Overflow > 0 {
		t.Fatalf("%+v, want %d nodes with %d blocks", st, len(nodes), len(distinct))
	}
}

func modelNodes(t testing.TB, x *Index, n int) []*modelNode {
	nodes := make([]*modelNode, n)
	for i, f := range join(t, x, n) {
		nodes[i] = &modelNode{feed: *f, held: map[Key]bool{}}
	}
	return nodes
}

// TestAgainstPlainMaps makes random changes to nodes of an index and of a model, in turn.
func TestAgainstPlainMaps(t *testing.T) {
	r := seeded(t)
	for range 8 {
		prompts := tree(r, 30, 150)
		x := New(Options{MaxBlocks: 1 << 16})
		nodes := modelNodes(t, x, 1+r.IntN(2*shardNodes))
		for range 15 {
			for range 60 {
				nodes[r.IntN(len(nodes))].step(t, r, prompts)
			}
			check(t, x, nodes, prompts)
		}
	}
}

// TestConcurrentStreams makes random changes from one goroutine per node of a full table. Meanwhile
// readers look up a prompt that one further node holds all the time, and that the changing nodes
// never hold.
func TestConcurrentStreams(t *testing.T) {
	r := seeded(t)
	prompts := tree(r, 30, 150)
	x := New(Options{MaxBlocks: 1 << 16})
	steady := join(t, x, 1)[0]
	own := made(1<<20, 500)
	steady.store(t, 0, own)
	nodes := modelNodes(t, x, shardNodes)
	refs := []Ref{steady.ref, nodes[0].ref, nodes[1].ref}

	var done atomic.Bool
	var readers, writers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for !done.Load() {
				if m := lookup(x, own, refs); m[0] != int32(len(own)) || m[1] != 0 || m[2] != 0 {
					t.Errorf("looked up %d", m)
					return
				}
				lookup(x, prompts[0], refs)
			}
		})
	}
	for i, n := range nodes {
		seed := r.Uint64()
		writers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 60 {
				n.step(t, r, prompts)
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	check(t, x, append(nodes, &modelNode{feed: *steady, held: heldOf(own)}), prompts)
}

func heldOf(chain keys) map[Key]bool {
	held := map[Key]bool{}
	for _, k := range chain {
		held[k] = true
	}
	return held
}
