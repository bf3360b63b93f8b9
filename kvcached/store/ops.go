package store

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
)

// op serialises the work on one address, except reads from RAM. With an SSD tier, every write,
// deletion, promotion and write-behind holds the address's op. So a block that is being read from
// SSD or written to it cannot come back after a deletion. There are as many ops as addresses with
// work in progress.
type op struct {
	addr  block.Addr
	turn  chan struct{} // has one element while a caller holds the op
	users int
	lost  bool // SSD has dropped its block since the op was acquired
}

// acquire waits for the op of an address. The caller must release the op.
func (s *Store) acquire(ctx context.Context, a block.Addr) (*op, error) {
	s.mu.Lock()
	o := s.ops[a]
	if o == nil {
		o = &op{addr: a, turn: make(chan struct{}, 1)}
		s.ops[a] = o
	}
	o.users++
	s.mu.Unlock()
	select {
	case o.turn <- struct{}{}:
		s.mu.Lock()
		o.lost = false
		s.mu.Unlock()
		return o, nil
	case <-ctx.Done():
		s.mu.Lock()
		s.leave(o)
		s.mu.Unlock()
		return nil, ctx.Err()
	}
}

// release lets the next caller have the op.
func (s *Store) release(o *op) {
	<-o.turn
	s.mu.Lock()
	s.leave(o)
	s.mu.Unlock()
}

func (s *Store) leave(o *op) {
	if o.users--; o.users == 0 {
		delete(s.ops, o.addr)
	}
}
