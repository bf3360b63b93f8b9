package store

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Draft is a block that is being written. One goroutine at a time may use a Draft. Commit or Abort
// ends a Draft.
type Draft struct {
	unless func() bool // CommitOptions.Unless
	s      *Store
	it     Item // Key and Attr are empty here; they already lie behind the payload
	hash   uint64
	ns     uint32
	body   ram.Ext
	memory []byte // memory of the whole piece
	meta   ram.Meta
	filled int
	crc    uint32
	share  int64       // bytes of Store.draftBytes; guarded by Store.mu
	done   bool        // Commit or Abort has begun
	public bool        // the block is published, so the draft must not cancel it
	purged atomic.Bool // see Purged
	at     int         // index in Store.open
	timer  Timer
	began  time.Time // start of the time for timer
}

// Timer records durations in seconds. Observe must be quick.
type Timer interface{ Observe(seconds float64) }

// Time sets a timer. A Commit that stores the block reports the time since began to this timer.
func (d *Draft) Time(to Timer, began time.Time) { d.timer, d.began = to, began }

// Create reserves room for a payload of length bytes. Create evicts other blocks if there is no
// room. The block is not visible before Commit. Create's errors are ErrFull, ErrTooLarge and
// ErrQuota.
func (s *Store) Create(ctx context.Context, it Item, length int) (*Draft, error) {
	if err := it.check(length); err != nil {
		return nil, err
	}
	size := ram.PieceSize(length, len(it.Key)+len(it.Attr))
	if int64(ram.Granules(size))*ram.Granule > s.arena.Size() {
		ram := s.arena.Size()
		return nil, &SizeError{Length: int64(length), Most: ram - int64(size-length), Setting: "kvcached.ram",
			Size: ram}
	}
	d := &Draft{s: s, it: it, hash: s.tier.Hash(&it.Addr)}
	d.meta = ram.Meta{
		Parent: it.Parent, Expires: it.Expires, Length: uint32(length), KeyLen: uint16(len(it.Key)),
		AttrLen: uint16(len(it.Attr)),
	}
	if err := s.reserve(ctx, d, size); err != nil {
		return nil, err
	}
	d.it.Key, d.it.Attr = nil, nil
	layOut(d.memory, length, it.Key, it.Attr)
	s.open.add(d)
	return d, nil
}

// layOut writes key and attribute behind a payload of length bytes and zeros into the gaps.
func layOut(memory []byte, length int, key, attr []byte) {
	if len(key)+len(attr) == 0 {
		clear(memory[length:])
		return
	}
	n := ram.MetaAt(length)
	clear(memory[length:n])
	n += copy(memory[n:], key)
	n += copy(memory[n:], attr)
	clear(memory[n:])
}

// reserve reserves room for d. The lock is unlocked now and then while blocks are evicted.
func (s *Store) reserve(ctx context.Context, d *Draft, size int) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	if !s.mayDraft(int64(size)) {
		s.counts.Refused++
		return fmt.Errorf("%w: too much of it by blocks that are still being written", ErrFull)
	}
	names := s.tier.Names()
	if d.ns, err = names.Hold(d.it.Addr.Model, d.it.Namespace); err != nil {
		return err
	}
	d.it.Namespace = names.At(d.ns).Text
	room := ram.Room{Parent: s.parent(&d.it)}
	err = s.evicting(ctx, func() (again bool, err error) {
		d.body, again, err = s.tier.Reserve(d.ns, size, &room)
		return again, err
	})
	if err != nil {
		names.Drop(d.ns)
		return err
	}
	d.memory = s.tier.Memory(d.body)
	d.share = int64(len(d.memory))
	s.draftBytes += d.share
	return nil
}

// parent returns the parent of a block if RAM has it, else 0. The caller holds the lock.
func (s *Store) parent(it *Item) ram.ID {
	if it.Parent == (block.Digest{}) {
		return 0
	}
	a := block.Addr{Digest: it.Parent, Layer: it.Addr.Layer, Model: it.Addr.Model}
	return s.tier.Find(s.tier.Hash(&a), &a)
}

// smallDraft is the size, in bytes, up to which a draft is small.
const smallDraft = 64 << 10

// mayDraft tells whether one more draft of size bytes is allowed. Drafts may fill half of the
// arena, and small ones a further quarter. So clients that begin to write and stop can neither
// evict all blocks nor keep out small drafts. A single draft may have any size. The caller holds
// the lock.
func (s *Store) mayDraft(size int64) bool {
	limit := s.arena.Size() / 2
	if size <= smallDraft {
		limit = s.arena.Size() / 4 * 3
	}
	return s.draftBytes == 0 || s.draftBytes+size <= limit
}

// evicting calls step until step needs no further call. The caller holds the lock; evicting unlocks
// it between two calls.
func (s *Store) evicting(ctx context.Context, step func() (again bool, err error)) error {
	for ended := false; ; {
		again, err := step()
		switch {
		case err == nil && !again:
			return nil
		case err == nil:
			s.mu.Unlock()
			err = ctx.Err()
			s.mu.Lock()
			if err == nil && s.closed {
				err = ErrClosed
			}
		case !ended && s.tier.EndPins(s.o.Now()) > 0:
			ended, err = true, nil
		}
		if err != nil {
			s.counts.Refused++
			return err
		}
	}
}

// Bytes is the payload's memory in the arena. The caller writes the payload into these bytes.
func (d *Draft) Bytes() []byte { return d.memory[:d.meta.Length:d.meta.Length] }

// Filled says that the next n bytes are written. The bytes are added to the checksum while they are
// in the processor's cache. Commit adds the remaining bytes.
func (d *Draft) Filled(n int) {
	d.crc = block.Extend(d.crc, d.memory[d.filled:d.filled+n])
	d.filled += n
}

// Park takes a complete draft out of the share of the arena that drafts may have. The owner of
// parked drafts must bound their number. Only Abort may follow.
func (d *Draft) Park() {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	d.dropShare()
}

// dropShare ends the draft's share of the arena. The caller holds the lock.
func (d *Draft) dropShare() {
	d.s.draftBytes -= d.share
	d.share = 0
}

// Purged tells whether a purge has removed the draft's block since Create. Commit drops such a
// block and reports success, because the write is earlier than the purge.
func (d *Draft) Purged() bool { return d.purged.Load() }

// drafts are the open drafts. A purge removes their blocks, too.
type drafts struct {
	mu  sync.Mutex // nothing is locked while it is held
	all []*Draft
}

func (o *drafts) add(d *Draft) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d.at, o.all = len(o.all), append(o.all, d)
}

func (o *drafts) remove(d *Draft) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := o.all[len(o.all)-1]
	o.all[d.at], last.at = last, d.at
	o.all[len(o.all)-1] = nil
	o.all = o.all[:len(o.all)-1]
}

// purge sets Purged of the drafts whose blocks match.
func (o *drafts) purge(match func(namespace string, key []byte) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, d := range o.all {
		var key []byte
		if n := int(d.meta.KeyLen); n > 0 {
			at := ram.MetaAt(int(d.meta.Length))
			key = d.memory[at : at+n]
		}
		if match(d.it.Namespace, key) {
			d.purged.Store(true)
		}
	}
}

// Abort frees the draft's room. Abort does nothing after Commit.
func (d *Draft) Abort() {
	if d.done {
		return
	}
	d.done = true
	d.s.mu.Lock()
	d.cancel()
	d.s.mu.Unlock()
}

// cancel frees the draft's room. The caller holds the lock.
func (d *Draft) cancel() {
	d.s.open.remove(d)
	d.dropShare()
	d.s.tier.Cancel(d.ns, d.body)
	d.s.tier.Names().Drop(d.ns)
}

// putStep is the number of bytes that Put copies before it adds them to the checksum. putStep bytes
// fit a processor's cache.
const putStep = 128 << 10

// Put stores a whole block.
func (s *Store) Put(ctx context.Context, it Item, payload []byte, durable bool) (Info, error) {
	d, err := s.Create(ctx, it, len(payload))
	if err != nil {
		return Info{}, err
	}
	for to := d.Bytes(); len(payload) > 0; {
		n := copy(to, payload[:min(len(payload), putStep)])
		d.Filled(n)
		to, payload = to[n:], payload[n:]
	}
	return d.Commit(ctx, CommitOptions{Durable: durable})
}
