package engine

import (
	"context"
	"sync"
	"time"
)

// maxShelved bounds the blocks of a Shelf.
const maxShelved = 1 << 16

// Shelf is what the cache daemons of a fleet keep of the blocks of simulated engines. Once it is
// full, the oldest blocks go. The zero value is an empty Shelf. Any goroutine may call the methods.
type Shelf struct {
	mu      sync.Mutex
	blocks  map[blockHash]struct{}
	order   []blockHash
	changed chan struct{} // closed when blocks come; nil: nobody waits
}

// put adds blocks.
func (s *Shelf) put(hashes []blockHash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.blocks == nil {
		s.blocks = map[blockHash]struct{}{}
	}
	for _, h := range hashes {
		if _, there := s.blocks[h]; there {
			continue
		}
		if len(s.order) == maxShelved {
			delete(s.blocks, s.order[0])
			s.order = append(s.order[:0], s.order[1:]...)
		}
		s.blocks[h], s.order = struct{}{}, append(s.order, h)
	}
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// Clear drops all blocks, as daemons that start anew.
func (s *Shelf) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks, s.order = nil, nil
}

// lacks returns what tells of new blocks, or nil if all of the given ones are here.
func (s *Shelf) lacks(hashes []blockHash) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range hashes {
		if _, there := s.blocks[h]; !there {
			if s.changed == nil {
				s.changed = make(chan struct{})
			}
			return s.changed
		}
	}
	return nil
}

// await waits until all blocks are here. await returns false if ctx ends or the limit does.
func (s *Shelf) await(ctx context.Context, hashes []blockHash, limit time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		changed := s.lacks(hashes)
		if changed == nil {
			return true
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// storedAnswer is the member kv_transfer_params of the answer of an engine that stores its prompt's
// blocks for another one.
type storedAnswer struct {
	Tokens int `json:"cgn_tokens"`
}

// stores puts the blocks of a complete answer's prompt on the shelf, and returns what the answer
// says about them.
func (c *call) stores(q *sequence) any {
	n := len(q.prompt) / c.cfg.BlockTokens
	if !q.stores || c.fault.NoTransfer || n == 0 {
		return nil
	}
	if !c.fault.LoseBlocks {
		c.cfg.Shelf.put(q.hashes[:n])
	}
	return &storedAnswer{n * c.cfg.BlockTokens}
}

// shelved returns the handover of an engine with ConnectorKVCached. One prompt of a request can be
// handed over.
func (c *call) shelved(s *sampling, k int) (h handover) {
	if kv := s.KVTransfer; kv != nil && k == 0 {
		h.stores, h.shelved = kv.store, kv.stored
		h.patience = time.Duration(min(max(kv.waitMS, 0), 2_000)) * time.Millisecond
	}
	return h
}

// fetch takes the blocks of q that another engine has stored. If they do not come, q is computed.
func (c *call) fetch(ctx context.Context, q *sequence, h *handover) {
	n := min(h.shelved/c.cfg.BlockTokens, (len(q.prompt)-1)/c.cfg.BlockTokens)
	if n > 0 && c.cfg.Shelf.await(ctx, q.hashes[:n], h.patience) {
		q.received, q.cachedThere = true, n*c.cfg.BlockTokens
		return
	}
	c.core.lender.lost.Add(1)
}
