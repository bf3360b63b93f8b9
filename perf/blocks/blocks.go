// Package blocks turns a trace into the operations on an index of KV blocks. For each request these
// are a lookup, and the blocks that the request's node then stores and removes.
package blocks

import (
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/perf/trace"
)

// Tokens is the number of tokens in a block.
const Tokens = block.Tokens

const perID = trace.BlockTokens / Tokens

// Op is one request. The index looks up Prompt. Then the node removes blocks to make room, and
// stores the blocks that it did not have.
type Op struct {
	Node    int
	Prompt  []uint64 // keys of the blocks
	Held    int      // leading blocks that Node holds; no node holds more
	Removed []uint64
}

// Replay holds the operations of a trace on a number of nodes.
type Replay struct {
	Nodes int
	Ops   []Op
	// LookedUp, Hits, Stored and Removed are numbers of blocks. Hits are the looked-up blocks that
	// the request's node held.
	LookedUp, Hits, Stored, Removed int
}

// Options are the options of a replay.
type Options struct {
	Nodes int
	// Capacity is the size of each node's cache in blocks; 0: all blocks of the trace. A node
	// evicts the least recently used block, and within a prompt the last block first.
	Capacity int
	// Lead is how many blocks precede those of the trace in each prompt. Prompts of a trace diverge
	// after a multiple of 32 blocks. If the lead is no multiple of 16, they diverge within a group.
	Lead int
}

// New replays a trace. A request goes to the node that holds most of its prompt. Among nodes that
// hold equally much, the request goes to the node that has stored least. Requests whose only common
// block is the trace's first share nothing.
func New(s trace.Source, o Options) (*Replay, error) {
	r := &Replay{Nodes: o.Nodes}
	caches := make([]*lru, o.Nodes)
	for i := range caches {
		caches[i] = newLRU(o.Capacity)
	}
	for q, err := range trace.All(s) {
		if err != nil {
			return nil, err
		}
		r.add(caches, Keys(&q, o.Lead))
	}
	return r, nil
}

func (r *Replay) add(caches []*lru, prompt []uint64) {
	best, held := 0, -1
	for i, c := range caches {
		n := c.leading(prompt)
		if n > held || n == held && c.stored < caches[best].stored {
			best, held = i, n
		}
	}
	op := Op{Node: best, Prompt: prompt, Held: held, Removed: caches[best].take(prompt, held)}
	r.Ops = append(r.Ops, op)
	r.LookedUp += len(prompt)
	r.Hits += held
	r.Stored += len(prompt) - held
	r.Removed += len(op.Removed)
}

// Keys returns the keys of a request's full blocks, after lead blocks that prompts of the same
// beginning share.
func Keys(q *trace.Request, lead int) []uint64 {
	digests := make([]uint64, 0, lead+q.InputLength/Tokens)
	for i, id := range q.HashIDs {
		base := uint64(id) * perID
		if i == 0 && len(q.HashIDs) > 1 {
			base = 1<<40 + uint64(q.HashIDs[1])*perID
		}
		if i == 0 {
			for j := range uint64(lead) {
				digests = append(digests, trace.Spread(1<<50+base+j))
			}
		}
		for j := range uint64(perID) {
			if len(digests) == cap(digests) {
				break
			}
			digests = append(digests, trace.Spread(base+j))
		}
	}
	return keysOf(digests)
}

// Generated returns the trace that is used without a recorded one.
func Generated() trace.Source { return trace.Generator{Seed: 1, Requests: 4000}.Source() }

// Chain returns n blocks that no trace has. The blocks differ for each seed below 2^28.
func Chain(seed, n int) []uint64 {
	digests := make([]uint64, n)
	for i := range digests {
		digests[i] = trace.Spread(1<<60 + uint64(seed)<<32 + uint64(i))
	}
	return keysOf(digests)
}

// groupBlocks is the group size of router/residency.
const groupBlocks = 16

// keysOf makes the keys of router/residency from the digests of a prompt. A key consists of half of
// the digest of the group's first block, half of the block's own digest, and the block's place in
// the group.
func keysOf(digests []uint64) []uint64 {
	keys := make([]uint64, len(digests))
	for i, own := range digests {
		keys[i] = digests[i-i%groupBlocks]>>32<<32 | own<<36>>32 | uint64(i%groupBlocks)
	}
	return keys
}
