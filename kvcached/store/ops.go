package store

import (
	"context"

	"github.com/cognitora/dataplane/kv/block"
)

// op is what is done with one address besides reading it from RAM. With an SSD tier, whatever
// writes, deletes, promotes or writes behind holds the address's op, so that these follow each
// other: a block that is being read from SSD or written to it cannot come back after a deletion.
// There are as many as callers at work.
type op struct {
	addr  block.Addr
	turn  chan struct{} // holds one element while somebody has the turn
	users int
	lost  bool // since the turn began SSD has dropped what it had
}

// acquire waits for the turn at an address. The op must be released.
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

// release ends the turn.
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

// forgive forgets what SSD has dropped before now, which is about to be replaced.
func (s *Store) forgive(o *op) {
	s.mu.Lock()
	o.lost = false
	s.mu.Unlock()
}
