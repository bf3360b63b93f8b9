package fleet

import (
	"context"
	"sync"
)

// drops are keys that other hosts are being told to drop; as many as callers.
type drops struct {
	mu    sync.Mutex
	under map[chan struct{}]struct{}
}

// begin notes one. It ends with the call of what is returned, when the others have dropped the key
// or are owed it.
func (d *drops) begin() (end func()) {
	done := make(chan struct{})
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.under == nil {
		d.under = map[chan struct{}]struct{}{}
	}
	d.under[done] = struct{}{}
	return func() {
		d.mu.Lock()
		delete(d.under, done)
		d.mu.Unlock()
		close(done)
	}
}

// wait returns true when those have ended that had begun, false when ctx ends before.
func (d *drops) wait(ctx context.Context) bool {
	d.mu.Lock()
	some := make([]chan struct{}, 0, len(d.under))
	for done := range d.under {
		some = append(some, done)
	}
	d.mu.Unlock()
	for _, done := range some {
		select {
		case <-done:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
