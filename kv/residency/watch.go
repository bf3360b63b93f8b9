package residency

import (
	"context"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// Holder is somebody who has blocks.
type Holder struct {
	Number uint32
	Engine string // empty: the daemon's own tiers
	Epoch  uint64 // of that start of the engine, or of the daemon
}

// Block is where a holder has a block.
type Block struct {
	Name           Name
	Leader, Parent uint64 // the first 8 bytes of their digests, little-endian; 0: not known, or none
	Holder         uint32
	Layer          uint32
	Position       uint32 // 1 + the block's number in its chain; 0: not known, and Leader neither
	Namespace      uint32 // index in Batch.Namespaces
	Tiers          Tiers  // where it is now, and whether it is pinned there; 0: nowhere any more
}

// Part is what a batch is of.
type Part uint8

// The parts of what a watcher reads: Reset, then Snapshot and Changes in any order, then Synced,
// then Changes.
const (
	Reset    Part = iota + 1 // forget everything; the next change has the number Last+1
	Snapshot                 // blocks as they are
	Synced                   // nothing is missing any more of how it was at change Last
	Changes                  // First to Last, in order; First is the last batch's Last+1
)

// Batch is some of what a watcher reads.
type Batch struct {
	Part        Part
	First, Last uint64   // numbers of changes, of those too that the watcher did not ask for
	Holders     []Holder // those that blocks are of, and with Reset, or when they are new, all others
	Gone        []uint32 // numbers of holders that are no more: forget their blocks
	Namespaces  []string // canonical texts of those that blocks are of
	Blocks      []Block

	spaces map[uint16]uint32
}

func (b *Batch) reset(p Part) {
	b.Part, b.First, b.Last = p, 0, 0
	b.Holders, b.Gone, b.Namespaces, b.Blocks = b.Holders[:0], b.Gone[:0], b.Namespaces[:0], b.Blocks[:0]
	if b.spaces == nil {
		b.spaces = map[uint16]uint32{}
	}
	clear(b.spaces)
}

// WatchOptions say what a watcher wants.
type WatchOptions struct {
	// All: of every layer and rank. Else only blocks that count in the router's overlap: of layer 0
	// or block.LayerAll, and of tensor- and pipeline-parallel rank 0.
	All bool
	// Epoch and After are those of the index and the last change that the watcher has read, once it
	// was Synced. If what came since is still there it begins with that; else, or where they are 0,
	// with a snapshot.
	Epoch, After uint64
}

// Watcher reads what is where. Its calls come from one goroutine at a time.
type Watcher struct {
	x     *Index
	all   bool
	next  uint64 // change that is read next
	first uint64 // the first one that was not told of

	stage   stage
	changes bool   // were read last, so that it is the snapshot's turn
	holder  uint32 // the snapshot comes from its table
	slot    uint32 // read last
	until   uint64 // with this change the snapshot is complete
}

type stage uint8

const (
	begins stage = iota
	reads        // the snapshot
	ends         // reads the changes up to until
	follows
)

// Watch makes a watcher, to be closed.
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
	batchScans  = 4 * batchBlocks // looked at for them
)

// Next reads on into b, whose memory it uses again, and waits until there is something. The error
// is the context's.
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
		select {
		case <-wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// step reads something, or returns what to wait for. It returns neither if it has only come nearer.
func (w *Watcher) step(b *Batch) (wake <-chan struct{}, done bool) {
	x := w.x
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.settle(batchBlocks) {
		return nil, false
	}
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
	b.Last = w.x.ring.last
	w.next = b.Last + 1
	w.first, w.stage, w.holder, w.slot = w.next, reads, 0, 0
}

// readChanges reads from the ring, and tells whether there is something to say.
func (w *Watcher) readChanges(b *Batch) bool {
	r := &w.x.ring
	b.reset(Changes)
	for range batchScans {
		if w.next > r.last || len(b.Blocks) == batchBlocks {
			break
		}
		w.add(b, r.at(w.next))
		w.next++
	}
	b.First, b.Last = w.first, w.next-1
	if len(b.Blocks)+len(b.Gone)+len(b.Holders) == 0 && w.next-w.first < uint64(len(r.changes)/4) {
		return false
	}
	w.first = w.next
	return true
}

// add puts a change into a batch. What a holder had that is no more is left out.
func (w *Watcher) add(b *Batch, e *entry) {
	if e.tiers == markGone {
		b.Gone = append(b.Gone, e.next)
		return
	}
	h := w.x.holders[e.next]
	if h == nil {
		return
	}
	if e.tiers == markJoined {
		b.know(h)
		return
	}
	w.put(b, h, e)
}

// know puts a holder into a batch, once if its blocks come together.
func (b *Batch) know(h *holder) {
	if n := len(b.Holders); n == 0 || b.Holders[n-1].Number != h.Number {
		b.Holders = append(b.Holders, h.Holder)
	}
}

// put puts a block into a batch, if the watcher wants it.
func (w *Watcher) put(b *Batch, h *holder, e *entry) {
	s := &w.x.namespaces.list[e.namespace]
	if !w.all && (!s.counts || e.layer != 0 && e.layer != block.LayerAll) {
		return
	}
	b.know(h)
	ns, ok := b.spaces[e.namespace]
	if !ok {
		ns = uint32(len(b.Namespaces))
		b.spaces[e.namespace] = ns
		b.Namespaces = append(b.Namespaces, s.text)
	}
	k := Block{Name: e.name, Parent: e.parent, Holder: h.Number, Layer: e.layer, Position: e.position, Namespace: ns,
		Tiers: e.tiers}
	if e.position != 0 {
		k.Leader = e.leader
	}
	b.Blocks = append(b.Blocks, k)
}

// readTable reads some slots of the snapshot, and tells whether there is something to say.
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
	for range batchScans {
		if w.slot >= h.used || len(b.Blocks) == batchBlocks {
			break
		}
		w.slot++
		if e := h.at(w.slot); e.tiers != 0 {
			w.put(b, h, e)
		}
	}
	return len(b.Blocks) > 0
}

// nextHolder is the one with the next larger number.
func (w *Watcher) nextHolder() (next *holder) {
	for n, h := range w.x.holders {
		if n > w.holder && (next == nil || n < next.Number) {
			next = h
		}
	}
	return next
}
