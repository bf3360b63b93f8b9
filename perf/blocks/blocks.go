// Package blocks turns a trace into what an index of KV blocks sees of it: a lookup per
// request, and the blocks that the node which takes the request then stores and removes.
package blocks

import (
	"errors"
	"io"

	"github.com/cognitora/dataplane/perf/trace"
)

// Tokens is the number of tokens of a block.
const Tokens = 16

const perID = trace.BlockTokens / Tokens

// Op is one request: the index is asked for Prompt, and the node then removes what had
// to make room and stores what it did not have.
type Op struct {
	Node    int
	Prompt  []uint64 // keys of the blocks
	Held    int      // leading blocks that Node holds, as many as any node
	Removed []uint64
}

// Replay is the requests of a trace on a number of nodes.
type Replay struct {
	Nodes int
	Ops   []Op
	// LookedUp, Hits, Stored and Removed count blocks. Hits are those of LookedUp that the
	// node of the request held.
	LookedUp, Hits, Stored, Removed int
}

// Options say how a trace is replayed.
type Options struct {
	Nodes int
	// Capacity of each node's cache in blocks; 0 = all of the trace's. It gives up the least
	// recently used, of a prompt the last first.
	Capacity int
	// Lead is how many blocks come before those of the trace in each prompt. Prompts of a trace
	// part after a multiple of 32 blocks; with a lead that is no multiple of 16 they part within a
	// group.
	Lead int
}

// New replays a trace: a request goes to the node that holds most of it, among those that hold the
// same to the one that stored least. Requests whose only common block is the trace's first share
// nothing.
func New(s trace.Source, o Options) (*Replay, error) {
	r := &Replay{Nodes: o.Nodes}
	caches := make([]*lru, o.Nodes)
	for i := range caches {
		caches[i] = newLRU(o.Capacity)
	}
	for {
		q, err := s.Next()
		if errors.Is(err, io.EOF) {
			return r, nil
		}
		if err != nil {
			return nil, err
		}
		r.add(caches, Keys(&q, o.Lead))
	}
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

// Keys is the keys of a request's full blocks, behind a number of blocks that prompts of the same
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
				digests = append(digests, mix(1<<50+base+j))
			}
		}
		for j := range uint64(perID) {
			if len(digests) == cap(digests) {
				break
			}
			digests = append(digests, mix(base+j))
		}
	}
	return keysOf(digests)
}

// Generated is the trace that is replayed when there is none.
func Generated() trace.Source { return trace.Generator{Seed: 1, Requests: 4000}.Source() }

// Chain is n blocks that no trace has, different ones for each seed below 2^28.
func Chain(seed, n int) []uint64 {
	digests := make([]uint64, n)
	for i := range digests {
		digests[i] = mix(1<<60 + uint64(seed)<<32 + uint64(i))
	}
	return keysOf(digests)
}

// groupBlocks is the group size of router/residency.
const groupBlocks = 16

// keysOf makes the keys of router/residency from the digests of a prompt: half of that of the first
// block of the group, the block's own, and its place in the group.
func keysOf(digests []uint64) []uint64 {
	keys := make([]uint64, len(digests))
	for i, own := range digests {
		keys[i] = digests[i-i%groupBlocks]>>32<<32 | own<<36>>32 | uint64(i%groupBlocks)
	}
	return keys
}

// mix spreads the bits of v; different values stay different (splitmix64).
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
