package ssd

import (
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Sync makes a block survive a crash from now on, as a durable write does. false: the block does
// not exist. It returns ErrClosed, or ErrIO. ErrIO may come from an earlier sync of the segment,
// which may have lost the block.
func (t *Tier) Sync(a block.Addr) (bool, error) {
	if !t.users.enter() {
		return false, ErrClosed
	}
	defer t.users.leave()
	hash := t.index.hash(&a)
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	e, ok := t.find(&a, false)
	if !ok {
		return false, nil
	}
	s := t.segs.acquire(e.segment)
	if s == nil {
		return false, nil
	}
	defer t.release(s)
	if err := t.datasync(s); err != nil {
		return false, fmt.Errorf("%w: %w", ErrIO, err)
	}
	if s.failed.Load() {
		return false, fmt.Errorf("%w: its segment was not synced", ErrIO)
	}
	return true, nil
}
