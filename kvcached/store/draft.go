package store

import (
	"context"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Draft is a block that is being written. One goroutine at a time may use it; it ends with Commit
// or Abort.
type Draft struct {
	unless func() bool // of Commit
	s      *Store
	it     Item // without Key and Attr, which lie behind the payload already
	hash   uint64
	ns     uint32
	body   ram.Ext
	memory []byte // all of the piece
	meta   ram.Meta
	filled int
	crc    uint32
	done   bool
	public bool // it is a block, and no longer the draft's to cancel
	parked bool // see Park
	timer  Timer
	began  time.Time // for timer
}

// Timer takes times in seconds. It must be quick.
type Timer interface{ Observe(seconds float64) }

// Time has to told, by a Commit that stores the block, how long ago began was.
func (d *Draft) Time(to Timer, began time.Time) { d.timer, d.began = to, began }

// Create reserves room for a payload of length bytes, evicting other blocks if it must. Nobody sees
// the block before Commit. ErrFull, ErrTooLarge, ErrQuota.
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
	return d, nil
}

// layOut puts key and attribute behind a payload of length bytes and zeros where nothing is.
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

// reserve takes room for d. The lock is let go now and then while blocks are evicted.
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
	s.drafts += int64(len(d.memory))
	return nil
}

// parent is the block in RAM on which another is to hang, if there is one. The lock is held.
func (s *Store) parent(it *Item) ram.ID {
	if it.Parent == (block.Digest{}) {
		return 0
	}
	a := block.Addr{Digest: it.Parent, Layer: it.Addr.Layer, Model: it.Addr.Model}
	return s.tier.Find(s.tier.Hash(&a), &a)
}

// smallDraft is the size up to which a draft may come when the large ones have all that they may,
// in bytes.
const smallDraft = 64 << 10

// mayDraft tells whether there may be another draft of so many bytes: large ones have half of the
// arena, so that clients that begin to write and stop neither push out everything that is read nor
// keep the small ones, which have another quarter, from being written. One alone may have any size.
// The lock is held.
func (s *Store) mayDraft(size int64) bool {
	limit := s.arena.Size() / 2
	if size <= smallDraft {
		limit = s.arena.Size() / 4 * 3
	}
	return s.drafts == 0 || s.drafts+size <= limit
}

// evicting calls step until it says that it need not be called again. The lock is held, but let go
// between two calls.
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

// Bytes is where the payload goes, in the arena.
func (d *Draft) Bytes() []byte { return d.memory[:d.meta.Length:d.meta.Length] }

// Filled says that the next n bytes are in place: the checksum goes on over them while they are in
// the processor's cache. Commit does it for what is left.
func (d *Draft) Filled(n int) {
	d.crc = block.Extend(d.crc, d.memory[d.filled:d.filled+n])
	d.filled += n
}

// Park takes the draft, which is complete and waits for others, out of the share of the arena that
// drafts may have: its owner has a bound of its own for such. Only Abort may follow.
func (d *Draft) Park() {
	if d.done || d.parked {
		return
	}
	d.parked = true
	d.s.mu.Lock()
	d.s.drafts -= int64(len(d.memory))
	d.s.mu.Unlock()
}

// Abort gives the room back. After Commit it does nothing.
func (d *Draft) Abort() {
	if d.done {
		return
	}
	d.done = true
	d.s.mu.Lock()
	d.cancel()
	d.s.mu.Unlock()
}

// cancel gives the room back. The lock is held.
func (d *Draft) cancel() {
	if !d.parked {
		d.s.drafts -= int64(len(d.memory))
	}
	d.s.tier.Cancel(d.ns, d.body)
	d.s.tier.Names().Drop(d.ns)
}

// putStep is how much Put copies before it sums, in bytes: what a processor's cache keeps.
const putStep = 128 << 10

// Put writes a whole block.
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
