package store

import (
	"context"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Block is a block in use. Its bytes stay until Release, whatever becomes of the address.
type Block struct {
	s        *Store
	body     ram.Ext
	released atomic.Bool
	offset   int64
	data     []byte
	info     Info
}

// Bytes is the payload, in the arena. It is for reading only, and valid until Release.
func (b *Block) Bytes() []byte { return b.data }

// Offset is where in the arena the payload begins, in bytes.
func (b *Block) Offset() int64 { return b.offset }

// Info is what was known of the block when it was got. Key and Attr are valid until Release.
func (b *Block) Info() Info { return b.info }

// Release lets go of the block. Call it once; what comes after the first call is counted and does
// nothing.
func (b *Block) Release() {
	s := b.s
	again := b.released.Swap(true)
	s.mu.Lock()
	if again {
		s.counts.ReleasedTwice++
	} else {
		s.tier.Drop(b.body)
	}
	s.mu.Unlock()
}

// Get holds the block with an address until its Release, and counts as a use. One that is only on
// SSD is brought to RAM. ErrMiss: there is none, or SSD cannot be read. ErrFull, ErrQuota: it is on
// SSD, and there is no room for it in RAM now.
//
// It is small so that it is inlined where it is called, and the Block need not be on the heap if it
// stays there.
func (s *Store) Get(ctx context.Context, a block.Addr) (*Block, error) {
	return s.get(ctx, &a, new(Block))
}

// get fills b in and returns it.
func (s *Store) get(ctx context.Context, a *block.Addr, b *Block) (*Block, error) {
	h := s.tier.Hash(a)
	found, err := s.hit(h, a, b)
	if err == nil && !found {
		err = s.getFromDisk(ctx, h, a, b)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// hit holds a block for b if RAM has it.
func (s *Store) hit(h uint64, a *block.Addr, b *Block) (found bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	id := s.find(h, a)
	if id == 0 || s.hidden() {
		return false, nil
	}
	s.counts.Hits++
	s.tier.Use(id, s.tier.Stamp(1))
	s.use(h, id, b)
	return true, nil
}

func (s *Store) missed() error {
	s.mu.Lock()
	s.counts.Misses++
	s.mu.Unlock()
	return ErrMiss
}

// getFromDisk holds for b a block that RAM had not.
func (s *Store) getFromDisk(ctx context.Context, h uint64, a *block.Addr, b *Block) error {
	if s.disk == nil || s.hidden() {
		return s.missed()
	}
	if _, there := s.disk.Find(*a); there {
		return s.promote(ctx, h, a, b)
	}
	// It may have been replaced meanwhile: then RAM had it before SSD lost it.
	if found, err := s.hit(h, a, b); found || err != nil {
		return err
	}
	return s.missed()
}

// use holds a block for b and counts that. The lock is held.
func (s *Store) use(h uint64, id ram.ID, b *Block) {
	e := s.tier.At(id)
	if e.Uses++; e.Uses == 0 {
		e.Uses--
	}
	if s.disk != nil {
		s.enqueue(h, id)
	}
	b.s, b.body = s, s.tier.Body(id)
	s.tier.Hold(b.body)
	b.offset, b.data = s.tier.Offset(b.body), s.tier.Payload(id)
	s.info(id, &b.info)
	b.info.Item.Key, b.info.Item.Attr = s.tier.Key(id), s.tier.Attr(id)
}

// Stat tells what is known of a block without using it, but not its key and attribute. ErrMiss:
// there is none.
func (s *Store) Stat(_ context.Context, a block.Addr) (Info, error) {
	var out [1]Info
	if err := s.StatAll(context.Background(), []block.Addr{a}, out[:]); err != nil {
		return Info{}, err
	}
	switch out[0].Tiers {
	case 0:
		return Info{}, ErrMiss
	case SSD: // whose index in memory has no parents
		if i, err := s.disk.Describe(a); err == nil && i.CRC == out[0].CRC && i.Length == out[0].Length {
			out[0].Item.Parent = i.Parent
		}
	}
	return out[0], nil
}

// atOnce is how many blocks are looked at before the lock is let go for a moment.
const atOnce = 128

// StatAll does Stat for many, but of blocks that are only on SSD it does not tell the parent:
// out[i] is about addrs[i] and has no Tiers where there is no such block. out must be as long as
// addrs.
func (s *Store) StatAll(ctx context.Context, addrs []block.Addr, out []Info) error {
	if s.hidden() {
		clear(out)
		return ctx.Err()
	}
	for len(addrs) > 0 {
		n := min(len(addrs), atOnce)
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := s.statSome(addrs[:n], out); err != nil {
			return err
		}
		addrs, out = addrs[n:], out[n:]
	}
	return nil
}

// statAttempts is how often statSome looks again because some block, perhaps another, was being
// replaced.
const statAttempts = 4

func (s *Store) statSome(addrs []block.Addr, out []Info) error {
	var hashes [atOnce]uint64
	for i := range addrs {
		hashes[i] = s.tier.Hash(&addrs[i])
		out[i].Tiers = 0
	}
	for range statAttempts {
		moved := s.moved.Load()
		missing, err := s.statRAM(addrs, hashes[:], out)
		if missing == 0 || err != nil || s.disk == nil {
			return err
		}
		for i := range addrs {
			if out[i].Tiers == 0 {
				s.statDisk(&addrs[i], &out[i])
			}
		}
		// What was replaced meanwhile came to RAM before SSD lost it: look again.
		if moved == s.moved.Load() {
			break
		}
	}
	return nil
}

// statRAM fills in what RAM has of the blocks of which nothing is known yet.
func (s *Store) statRAM(addrs []block.Addr, hashes []uint64, out []Info) (missing int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, ErrClosed
	}
	for i := range addrs {
		if out[i].Tiers != 0 {
			continue
		}
		if id := s.find(hashes[i], &addrs[i]); id != 0 {
			s.info(id, &out[i])
		} else {
			out[i] = Info{}
			missing++
		}
	}
	return missing, nil
}

func (s *Store) statDisk(a *block.Addr, out *Info) {
	if i, there := s.disk.Find(*a); there && !s.expired(i.Expires) {
		*out = Info{Item: Item{Addr: *a, Namespace: i.Namespace, Expires: i.Expires}, Length: i.Length, CRC: i.CRC,
			Tiers: SSD}
	}
}

// Touch says that the blocks of a prompt, given in their order, were used. The first counts as used
// last, so that of those which nobody uses any more leaves go before what they hang on. It is no
// use that makes a block go to SSD.
func (s *Store) Touch(addrs []block.Addr) {
	s.mu.Lock()
	stamp := s.tier.Stamp(len(addrs)) + uint64(len(addrs))
	s.mu.Unlock()
	for len(addrs) > 0 {
		n := min(len(addrs), atOnce)
		var hashes [atOnce]uint64
		for i := range addrs[:n] {
			hashes[i] = s.tier.Hash(&addrs[i])
		}
		s.mu.Lock()
		for i := range addrs[:n] {
			stamp--
			if id := s.find(hashes[i], &addrs[i]); id != 0 {
				s.tier.Touch(id, stamp)
			}
		}
		s.mu.Unlock()
		addrs = addrs[n:]
	}
}
