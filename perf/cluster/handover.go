package cluster

import (
	"container/heap"
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/sim/engine"
)

// The prompt of a request may be computed by another node than the one that answers. That node then
// makes one token, which nobody sees. The answering node reads the blocks and computes the prompt's
// last token again.

// handOver makes the node compute the prompt for the answering one.
func (f *flight) handOver(node int) {
	f.prefill, f.Received = node, true
	f.handed = &engine.Work{
		Blocks: f.Blocks, PromptTokens: f.PromptTokens, OutputTokens: 1, Lent: true, For: f,
	}
}

// cached returns how many tokens of the prompt were cached where it was computed.
func (f *flight) cached() int {
	if f.handed != nil {
		return f.handed.CachedTokens()
	}
	return f.CachedTokens()
}

// handedOver reports to the router that the prompt is computed. The answering node begins to read.
func (s *simulation) handedOver(f *flight) {
	f.rehearsal.HandedOver(usage.Counts{
		Prompt: int64(f.PromptTokens), HasPrompt: true, Cached: int64(f.cached()), HasCached: true, Completion: 1,
	}, epoch.Add(s.now))
	took := time.Duration(f.PromptTokens) * s.cfg.Transfer
	heap.Push(&s.events, event{at: s.now + took, node: f.node, read: f})
}

// read ends the transfer of f's blocks.
func (s *simulation) read(f *flight) {
	from := &s.nodes[f.prefill]
	from.model.Return(f.handed)
	if !from.busy {
		s.begin(f.prefill) // prompts may have waited for the memory
	}
	s.submit(f.node, &f.Work)
}
