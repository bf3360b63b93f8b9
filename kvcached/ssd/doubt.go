package ssd

import (
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
)

// doubt is the place of the last record that a failed write may have left in the log. No index has
// the record, but a start after a crash would find it. Until a checkpoint has passed the place, any
// address may have a record, so every deletion writes a tombstone and every write is synced.
type doubt struct{ at atomic.Uint64 } // 0: no doubt

func (d *doubt) any() bool { return d.at.Load() != 0 }

func (d *doubt) add(p place) {
	for {
		old := d.at.Load()
		if p.order() <= old || d.at.CompareAndSwap(old, p.order()) {
			return
		}
	}
}

// pass ends the doubt about records before a checkpoint.
func (d *doubt) pass(checkpoint place) {
	if at := d.at.Load(); at < checkpoint.order() {
		d.at.CompareAndSwap(at, 0)
	}
}

func (p place) order() uint64 { return uint64(p.segment)<<32 | uint64(p.page) }

// Doubtful tells whether a block that Find does not find may come back after a crash. It may if a
// write failed half way, or if the block's row cannot be read. A Delete without an error rules it
// out.
func (t *Tier) Doubtful(a block.Addr) bool {
	if !t.users.enter() {
		return true
	}
	defer t.users.leave()
	if t.doubt.any() {
		return true
	}
	if t.loaded() {
		return false
	}
	_, err := t.holds(t.index.hash(&a), &a)
	return err != nil
}
