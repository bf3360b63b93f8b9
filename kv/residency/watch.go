package residency

import (
	"context"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Holder has blocks: the daemon's tiers, or one incarnation of an engine.
type Holder struct {
	Number uint32
	Engine string // empty: the daemon's own tiers
	Epoch  uint64 // of the incarnation of the engine, or of the daemon
}

// Block gives the tiers in which a holder has a block.
type Block struct {
	Name           Name
	Leader, Parent uint64 // first 8 bytes of these blocks' digests, little-endian; 0: unknown, or none
	Holder         uint32
	Layer          uint32
	Position       uint32 // 1 + the block's number in its chain; 0: unknown, and Leader too
	Namespace      uint32 // index in Batch.Namespaces
	Tiers          Tiers  // the block's present tiers, with Pinned; 0: none
}

// Part is the kind of a batch.
type Part uint8

// These are the parts that a watcher reads: Reset, then Snapshot and Changes in any order, then
// Synced, then Changes.
const (
	Reset    Part = iota + 1 // forget everything; the next change has the number Last+1
	Snapshot                 // blocks in their present state
	Synced                   // the watcher has the complete state as of change Last
	Changes                  // changes First to Last, in order; First is the last batch's Last+1
)

// Batch is one unit of a watcher's input.
type Batch struct {
	Part        Part
	First, Last uint64   // numbers of changes, including unwanted ones
	Holders     []Holder // holders of the blocks; with Reset, or when new, also other holders
	Gone        []uint32 // numbers of departed holders: forget their blocks
	Namespaces  []string // canonical texts of the blocks' namespaces
	BlockBytes  []uint64 // bytes of a block of each namespace, as the daemon last stored one; 0: it stored none
	Blocks      []Block
	// Readers are all nodes that say what they read, in place of those told before; with Reset, and
	// after a change of Readers or Present. nil: nothing has changed. The list may be newer than
	// the blocks.
	Readers []Reader
	// Present are the namespaces of rank 0 of which the daemon has blocks, with Readers; nil: more
	// than MaxPresent. A change within a second of the last one comes when that second is over.
	Present []string

	spaces map[uint16]uint32
}

func (b *Batch) reset(p Part) {
	b.Part, b.First, b.Last = p, 0, 0
	b.Holders, b.Gone, b.Namespaces, b.Blocks = b.Holders[:0], b.Gone[:0], b.Namespaces[:0], b.Blocks[:0]
	b.BlockBytes = b.BlockBytes[:0]
	b.Readers, b.Present = nil, nil
	if b.spaces == nil {
		b.spaces = map[uint16]uint32{}
	}
	clear(b.spaces)
}

// WatchOptions select the blocks for a watcher.
type WatchOptions struct {
	// All selects every layer and rank. Without All only blocks that count for the router's overlap
	// are selected: layer 0 or block.LayerAll, and tensor- and pipeline-parallel rank 0. A block of
	// the daemon's tiers is then in RAM if every rank is, and on SSD if every rank is in RAM or on
	// SSD and not all are in RAM, or all are on SSD. Without All no block of the daemon's tiers
	// counts whose engine has more than MaxRanks ranks.
	All bool
	// Epoch and After are those of the index and of the last change that the watcher has read, once
	// it was Synced. The watch continues after After if the later changes are still in the ring.
	// Otherwise, or if Epoch and After are 0, the watch begins with a snapshot.
	Epoch, After uint64
}

// Watcher reads the index. One goroutine at a time calls a Watcher.
type Watcher struct {
	x     *Index
	all   bool
	next  uint64 // the next change to read
	first uint64 // the first change not told yet

	stage   stage
	changes bool          // changes were read last, so it is the snapshot's turn
	holder  uint32        // holder whose table the snapshot reads
	slot    uint32        // slot read last
	until   uint64        // the snapshot is complete with this change
	wait    time.Duration // the longest wait for the next change; 0: any
}

type stage uint8

const (
	begins stage = iota
	reads        // reads the snapshot
	ends         // reads the changes up to until
	follows
)

// Watch makes a watcher. Close the Watcher.
func (x *Index) Watch(o WatchOptions) *Watcher {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stats.Watchers++
	w := &Watcher{x: x, all: o.All}
	if o.Epoch == x.epoch && o.After+1 >= x.ring.oldest() && o.After <= x.ring.last {
		w.stage, w.next, w.first = follows, o.After+1, o.After+1
	}
	return w
}

// Close ends a watcher.
func (w *Watcher) Close() {
	w.x.mu.Lock()
	defer w.x.mu.Unlock()
	w.x.stats.Watchers--
}

const (
	batchBlocks = 256             // at most, per hold of the lock
	batchScans  = 4 * batchBlocks // slots searched for a batch's blocks
)

// Next reads the next batch into b, whose memory it reuses. Next waits until a batch is ready.
// Next's error is the context's.
func (w *Watcher) Next(ctx context.Context, b *Batch) error {
	for {
		wake, done := w.step(b)
		if done {
			return nil
		}
		if wake == nil {
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		var late <-chan time.Time
		if w.wait > 0 {
			late = time.After(w.wait)
		}
		select {
		case <-wake:
		case <-late:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step reads a part. done says that b is ready. wake is a channel to wait on if nothing is ready.
// If step has made progress and b is not ready yet, call step again.
func (w *Watcher) step(b *Batch) (wake <-chan struct{}, done bool) {
	x := w.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.settle(batchBlocks) {
		return nil, false
	}
	w.wait = x.tellLate()
	if w.stage != begins && w.next < x.ring.oldest() {
		x.stats.Resyncs++
		w.stage = begins
	}
	switch {
	case w.stage == begins:
		w.begin(b)
		return nil, true
	case w.next <= x.ring.last && !(w.stage == reads && w.changes):
		w.changes = true
		return nil, w.readChanges(b)
	case w.stage == reads:
		w.changes = false
		return nil, w.readTable(b)
	case w.stage == ends && w.next > w.until:
		w.stage = follows
		b.reset(Synced)
		b.First, b.Last = w.first, w.next-1
		w.first = w.next
		return nil, true
	}
	x.ring.waited = true
	return x.ring.wake, false
}

// begin starts a snapshot.
func (w *Watcher) begin(b *Batch) {
	b.reset(Reset)
	for _, h := range w.x.holders {
		b.Holders = append(b.Holders, h.Holder)
	}
	slices.SortFunc(b.Holders, func(a, b Holder) int { return int(a.Number) - int(b.Number) })
	b.Readers, b.Present = w.x.listReaders(), w.x.present()
	b.Last = w.x.ring.last
	w.next = b.Last + 1
	w.first, w.stage, w.holder, w.slot = w.next, reads, 0, 0
}

// readChanges reads from the ring. readChanges returns true if the batch has content.
func (w *Watcher) readChanges(b *Batch) bool {
	r := &w.x.ring
	b.reset(Changes)
	for scans := 0; scans < batchScans && w.next <= r.last && len(b.Blocks) < batchBlocks; w.next++ {
		scans += w.add(b, r.at(w.next))
	}
	b.First, b.Last = w.first, w.next-1
	if len(b.Blocks)+len(b.Gone)+len(b.Holders) == 0 && b.Readers == nil && w.next-w.first < uint64(len(r.changes)/4) {
		return false
	}
	w.first = w.next
	return true
}

// add adds a change to a batch. add skips changes of departed holders. add returns the slots
// searched.
func (w *Watcher) add(b *Batch, e *entry) (scans int) {
	switch e.tiers {
	case markGone:
		b.Gone = append(b.Gone, e.next)
		return 1
	case markReaders:
		if b.Readers == nil { // the list is of now, so it has later changes, too
			b.Readers, b.Present = w.x.listReaders(), w.x.present()
		}
		return 1
	}
	h := w.x.holders[e.next]
	if h == nil {
		return 1
	}
	if e.tiers == markJoined {
		b.know(h)
		return 1
	}
	return w.put(b, h, e)
}

// know adds a holder to a batch, once for adjacent blocks.
func (b *Batch) know(h *holder) {
	if n := len(b.Holders); n == 0 || b.Holders[n-1].Number != h.Number {
		b.Holders = append(b.Holders, h.Holder)
	}
}

// put adds a block to a batch if the watcher wants it. put returns the slots searched.
func (w *Watcher) put(b *Batch, h *holder, e *entry) (scans int) {
	s := &w.x.namespaces.list[e.namespace]
	if !w.all && (!s.counts || e.layer != 0 && e.layer != block.LayerAll) {
		return 1
	}
	tiers, scans := e.tiers, 1
	if !w.all && h == w.x.own && s.ranks > 1 {
		if s.family == nil {
			return 1
		}
		// A block that has left rank 0 is told as gone, even if it has come back: its position may
		// be another one.
		if tiers != 0 {
			tiers, scans = w.x.common(e, s.family, -1), len(s.family.spaces)
		}
		if tiers == 0 && b.Part == Snapshot {
			return scans
		}
	}
	b.know(h)
	ns, ok := b.spaces[e.namespace]
	if !ok {
		ns = uint32(len(b.Namespaces))
		b.spaces[e.namespace] = ns
		b.Namespaces, b.BlockBytes = append(b.Namespaces, s.text), append(b.BlockBytes, s.bytes)
	}
	k := Block{Name: e.name, Parent: e.parent, Holder: h.Number, Layer: e.layer, Position: e.position, Namespace: ns,
		Tiers: tiers}
	if e.position != 0 {
		k.Leader = e.leader
	}
	b.Blocks = append(b.Blocks, k)
	return scans
}

// readTable reads some slots of the snapshot. readTable returns true if the batch has content.
func (w *Watcher) readTable(b *Batch) bool {
	b.reset(Snapshot)
	h := w.x.holders[w.holder]
	if h == nil || w.slot >= h.used {
		if h = w.nextHolder(); h == nil {
			w.stage, w.until = ends, w.x.ring.last
			return false
		}
		w.holder, w.slot = h.Number, 0
	}
	for scans := 0; scans < batchScans && w.slot < h.used && len(b.Blocks) < batchBlocks; scans++ {
		w.slot++
		if e := h.at(w.slot); e.tiers != 0 {
			scans += w.put(b, h, e)
		}
	}
	return len(b.Blocks) > 0
}

// nextHolder returns the holder with the next larger number.
func (w *Watcher) nextHolder() (next *holder) {
	for n, h := range w.x.holders {
		if n > w.holder && (next == nil || n < next.Number) {
			next = h
		}
	}
	return next
}
