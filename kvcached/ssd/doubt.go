package ssd

import (
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
)

// maxDoubts is how many addresses are doubtful one by one; past it all are, until the checkpoint
// has passed.
const maxDoubts = 1 << 14

// doubts are addresses of which a failed write may have left a record in the log that is in no
// index, and would be found after a crash. A deletion or a replacement that is synced ends the
// doubt, and so does a checkpoint behind the record.
type doubts struct {
	some atomic.Bool // there are any
	mu   sync.Mutex
	of   map[uint64]place // by hash
	all  bool             // of records before till
	till place
	// leaving are the addresses that reclaim has evicted from the segment that it is about to free:
	// as many as that has records. Until no start finds the segment again, what is done to them
	// must be as certain as for one that is there.
	leaving map[uint64]struct{}
}

func (d *doubts) leave(hash uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving == nil {
		d.leaving = map[uint64]struct{}{}
	}
	d.leaving[hash] = struct{}{}
	d.some.Store(true)
}

// left ends that of all of them.
func (d *doubts) left() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = nil
	d.count()
}

// count says whether there are any; the lock is held.
func (d *doubts) count() { d.some.Store(d.all || len(d.of) > 0 || len(d.leaving) > 0) }

func (d *doubts) add(hash uint64, p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.some.Store(true)
	if len(d.of) < maxDoubts {
		if d.of == nil {
			d.of = map[uint64]place{}
		}
		d.of[hash] = p
		return
	}
	if !d.all || d.till.before(p) {
		d.all, d.till = true, p
	}
}

func (d *doubts) has(hash uint64) bool {
	if !d.some.Load() {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	_, there := d.of[hash]
	_, leaving := d.leaving[hash]
	return there || leaving || d.all
}

// end ends the doubt about one address.
func (d *doubts) end(hash uint64) {
	if !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.of, hash)
	delete(d.leaving, hash)
	d.count()
}

// pass ends the doubts about records before a checkpoint.
func (d *doubts) pass(checkpoint place) {
	if !d.some.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for hash, p := range d.of {
		if p.before(checkpoint) {
			delete(d.of, hash)
		}
	}
	if d.all && d.till.before(checkpoint) {
		d.all = false
	}
	d.count()
}

// Doubtful tells, of a block that Find does not find, whether one with its address may be there
// after a crash all the same: a write of it has failed half way, its row cannot be read, the rows
// are being made again, or it is being evicted. Only a Delete without an error says that there is
// none then.
func (t *Tier) Doubtful(a block.Addr) bool {
	if !t.users.enter() {
		return true
	}
	defer t.users.leave()
	hash := t.index.hash(&a)
	if t.doubts.has(hash) || t.rebuilding.Load() {
		return true
	}
	if t.loaded() {
		return false
	}
	_, err := t.holds(hash, &a)
	return err != nil
}
