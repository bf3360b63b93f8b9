package store

import (
	"context"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// Block is a block in use. The bytes of a Block stay until Release, even if the block is replaced
// or deleted.
type Block struct {
	s        *Store
	body     ram.Ext
	released atomic.Bool
	silent   bool // whether it was there counts neither as a hit nor as a miss
	offset   int64
	data     []byte
	info     Info
}

// Bytes returns the payload in the arena. Do not write to these bytes, nor use them after Release.
func (b *Block) Bytes() []byte { return b.data }

// Offset is the payload's first byte in the arena.
func (b *Block) Offset() int64 { return b.offset }

// Info is the block's Info at the time of Get. Key and Attr of the Info are valid until Release.
func (b *Block) Info() Info { return b.info }

// Release ends the use of the block. Call Release once. Further calls are counted and do nothing.
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

// Get holds the block at an address until Release. A Get counts as a use. Get brings a block that
// is only on SSD to RAM. ErrMiss: there is no block, or SSD cannot be read. ErrFull and ErrQuota:
// the block is on SSD, and RAM has no room for it now.
//
// Get is small so that the compiler inlines it. The Block then stays on the caller's stack if it
// does not escape.
func (s *Store) Get(ctx context.Context, a block.Addr) (*Block, error) {
	return s.get(ctx, &a, new(Block))
}

// Warm brings a block that is only on SSD to RAM. Warm counts as a use of the block, like Get, but
// neither as a hit nor as a miss: nobody has asked for the block yet. Its errors are those of Get.
func (s *Store) Warm(ctx context.Context, a block.Addr) error {
	b, err := s.get(ctx, &a, &Block{silent: true})
	if err == nil {
		b.Release()
	}
	return err
}

// get fills b and returns it.
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
	if !b.silent {
		s.counts.Hits++
	}
	s.tier.Use(id, s.tier.Stamp(1))
	s.use(h, id, b)
	return true, nil
}

// missed counts a miss. The caller does not hold the lock.
func (s *Store) missed(b *Block) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.miss(b)
}

// miss is missed for a caller that holds the lock.
func (s *Store) miss(b *Block) error {
	if !b.silent {
		s.counts.Misses++
	}
	return ErrMiss
}

// getFromDisk holds for b a block that RAM does not have.
func (s *Store) getFromDisk(ctx context.Context, h uint64, a *block.Addr, b *Block) error {
	if s.disk == nil || s.hidden() {
		return s.missed(b)
	}
	if _, there := s.disk.Find(*a); there {
		return s.promote(ctx, h, a, b)
	}
	// The block may have been replaced meanwhile. RAM got the new block before SSD lost the old
	// one.
	if found, err := s.hit(h, a, b); found || err != nil {
		return err
	}
	return s.missed(b)
}

// use holds a block for b and counts the use. The caller holds the lock.
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

// Stat returns the Info of a block without key and attribute. Stat does not count as a use.
// ErrMiss: there is no block.
func (s *Store) Stat(ctx context.Context, a block.Addr) (Info, error) {
	var out [1]Info
	if err := s.StatAll(ctx, []block.Addr{a}, out[:]); err != nil {
		return Info{}, err
	}
	switch out[0].Tiers {
	case 0:
		return Info{}, ErrMiss
	case SSD: // the SSD index in memory has no parents
		if i, err := s.disk.Describe(a); err == nil && i.CRC == out[0].CRC && i.Length == out[0].Length {
			out[0].Item.Parent = i.Parent
		}
	}
	return out[0], nil
}

// atOnce is the number of blocks that are looked at before the lock is unlocked for a moment.
const atOnce = 128

// StatAll is Stat for many addresses: out[i] is the Info of addrs[i], without Tiers if there is no
// block. The parent of a block that is only on SSD is left out. out must be as long as addrs.
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

// statAttempts is the number of times that statSome looks while blocks are being replaced.
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
		// A block that was replaced meanwhile came to RAM before SSD lost it, so look again.
		if moved == s.moved.Load() {
			break
		}
	}
	return nil
}

// statRAM fills the elements of out that are still empty with the Info of blocks in RAM.
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

// Touch marks the blocks of a prompt as used. addrs has the blocks in the prompt's order. The first
// block counts as the most recently used, so that children are evicted before their parents. Touch
// does not count as a use that makes a block go to SSD.
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
