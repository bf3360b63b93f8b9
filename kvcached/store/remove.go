package store

import (
	"context"
	"maps"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Delete removes a block from all tiers and tells whether there was one. Readers of the block can
// go on. The block does not come back after a Delete without an error, not even after a crash.
func (s *Store) Delete(ctx context.Context, a block.Addr) (bool, error) {
	if s.o.Deleting != nil {
		s.o.Deleting(a)
	}
	if s.disk == nil {
		return s.deleteRAM(&a)
	}
	o, err := s.acquire(ctx, a)
	if err != nil {
		return false, err
	}
	defer s.release(o)
	return s.deleteAll(ctx, []block.Addr{a})
}

// deleteRAM removes a block from RAM.
func (s *Store) deleteRAM(a *block.Addr) (there bool, err error) {
	h := s.tier.Hash(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	if id := s.tier.Find(h, a); id != 0 {
		there = !s.expired(s.tier.At(id).Expires)
		s.remove(id)
		s.counts.Deletes++
	}
	return there, nil
}

// deleteAll removes blocks from all tiers. The caller holds the ops of the blocks, so nobody can
// promote the blocks after their removal from RAM.
func (s *Store) deleteAll(ctx context.Context, addrs []block.Addr) (any bool, err error) {
	var stored []block.Addr
	for i := range addrs {
		there, err := s.deleteRAM(&addrs[i])
		if err != nil {
			return any, err
		}
		info, on := s.disk.Find(addrs[i])
		if on || s.disk.Doubtful(addrs[i]) {
			stored = append(stored, addrs[i])
		}
		any = any || there || on && !s.expired(info.Expires)
	}
	if len(stored) == 0 {
		return any, nil
	}
	if _, err := s.disk.Delete(ctx, stored...); err != nil {
		return any, diskError("deleted", 0, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.DiskDeletes += uint64(len(stored))
	for i := range stored {
		s.leftDisk(s.tier.Hash(&stored[i]), &stored[i], block.Digest{})
	}
	return any, nil
}

// SetExpiry sets the moment when a block expires, in Unix ms; 0: never. SetExpiry returns false if
// there is no such block.
func (s *Store) SetExpiry(ctx context.Context, a block.Addr, unixMS int64) (bool, error) {
	if s.disk == nil {
		return s.expireRAM(&a, unixMS)
	}
	o, err := s.acquire(ctx, a)
	if err != nil {
		return false, err
	}
	defer s.release(o)
	there, err := s.expireRAM(&a, unixMS)
	if err != nil {
		return false, err
	}
	if info, on := s.disk.Find(a); on && !s.expired(info.Expires) || !on && s.disk.Doubtful(a) {
		stored, err := s.disk.SetExpiry(a, unixMS)
		if err != nil {
			return false, diskError("changed on SSD", 0, err)
		}
		there = there || stored
	}
	return there, nil
}

func (s *Store) expireRAM(a *block.Addr, unixMS int64) (bool, error) {
	h := s.tier.Hash(a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, ErrClosed
	}
	id := s.find(h, a)
	if id != 0 {
		s.tier.At(id).Expires = unixMS
	}
	return id != 0, nil
}

// Pin keeps a block in RAM until a time in Unix ms, or until the owner's Unpin. A second Pin of the
// same owner changes the time. A deletion ends all pins of the block. Pin's errors are ErrMiss and
// ram.ErrPins. ErrPins says that there are too many pins. Pin promotes a block that is only on SSD,
// as long as ctx lasts.
func (s *Store) Pin(ctx context.Context, a block.Addr, owner string, until int64) error {
	if s.disk != nil {
		b, err := s.Get(ctx, a)
		if err != nil {
			return err
		}
		defer b.Release()
	}
	h := s.tier.Hash(&a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	id := s.find(h, &a)
	if id == 0 || s.hidden() {
		return ErrMiss
	}
	return s.tier.Pin(id, owner, until)
}

// Unpin ends an owner's pin of a block, if there is one.
func (s *Store) Unpin(a block.Addr, owner string) {
	h := s.tier.Hash(&a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := s.tier.Find(h, &a); id != 0 {
		s.tier.Unpin(id, owner)
	}
}

// purgeAtOnce is the number of blocks that a purge drops from SSD at a time.
const purgeAtOnce = 256

// Purge removes the blocks for which match returns true from all tiers, and returns their number.
// match may be called any number of times. match must not call the store. A block that was there or
// was created before a successful Purge does not come back, not even after a crash.
//
// SSD evicts blocks on its own, and blocks move between the tiers meanwhile. From the start of a
// Purge no block that match names moves any more, and moves that have begun end before Purge looks
// at a tier.
func (s *Store) Purge(ctx context.Context, match func(namespace string, key []byte) bool) (blocks int, err error) {
	s.purging.Lock()
	defer s.purging.Unlock()
	defer s.recount()
	moving := s.beginPurge(match)
	defer s.endPurge()
	for _, a := range moving {
		o, err := s.acquire(ctx, a)
		if err != nil {
			return 0, err
		}
		s.release(o)
	}
	if blocks, err = s.purgeRAM(ctx, match); err != nil || s.disk == nil {
		return blocks, err
	}
	for cursor := uint64(0); ; {
		var found []block.Addr
		next, err := s.disk.Scan(ctx, cursor, func(i ssd.Info) bool {
			if match(i.Namespace, i.Key) {
				found = append(found, i.Addr)
			}
			return true
		})
		if err != nil {
			return blocks, diskError("purged", 0, err)
		}
		for some := range slices.Chunk(found, purgeAtOnce) {
			if err := s.purgeSome(ctx, some); err != nil {
				return blocks, err
			}
			blocks += len(some)
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	if err = s.disk.Settle(); err != nil {
		err = diskError("purged", 0, err)
	}
	s.disk.ForgetNames()
	return blocks, err
}

// beginPurge makes match the purge that runs, and returns the addresses with work in progress.
func (s *Store) beginPurge(match func(namespace string, key []byte) bool) []block.Addr {
	s.open.purge(match)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.match = match
	return slices.Collect(maps.Keys(s.ops))
}

func (s *Store) endPurge() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.match = nil
}

// purges tells whether the purge that runs names a block. The caller holds the lock.
func (s *Store) purges(namespace string, key []byte) bool {
	return s.match != nil && s.match(namespace, key)
}

// purgesID is purges for a block in RAM.
func (s *Store) purgesID(id ram.ID) bool {
	return s.match != nil && s.match(s.tier.Names().At(s.tier.At(id).NS()).Text, s.tier.Key(id))
}

// purgeRAM removes the blocks in RAM from all tiers. purgeSome drops those that SSD has as well. A
// block whose op is held is dropped after the op's release.
func (s *Store) purgeRAM(ctx context.Context, match func(namespace string, key []byte) bool) (blocks int, err error) {
	var busy []block.Addr
	err = s.each(ctx, func(id ram.ID) {
		e := s.tier.At(id)
		if !match(s.tier.Names().At(e.NS()).Text, s.tier.Key(id)) {
			return
		}
		blocks++
		if a := s.tier.Addr(id); s.ops[a] != nil || e.Mark&onDisk != 0 {
			busy = append(busy, a)
		} else {
			s.remove(id)
		}
	})
	for some := range slices.Chunk(busy, purgeAtOnce) {
		if err == nil {
			err = s.purgeSome(ctx, some)
		}
	}
	return blocks, err
}

// purgeSome drops blocks from all tiers while it holds all their ops. There is one purge at a time,
// and only a purge holds more than one op, so there is no deadlock.
func (s *Store) purgeSome(ctx context.Context, addrs []block.Addr) error {
	turns := make(map[block.Addr]bool, len(addrs))
	for _, a := range addrs {
		if turns[a] {
			continue // SSD has listed the block twice
		}
		turns[a] = true
		o, err := s.acquire(ctx, a)
		if err != nil {
			return err
		}
		defer s.release(o)
	}
	for i := range addrs {
		if _, err := s.deleteRAM(&addrs[i]); err != nil {
			return err
		}
	}
	if s.disk == nil {
		return nil
	}
	if err := s.disk.Drop(addrs...); err != nil {
		return diskError("purged", 0, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range addrs {
		s.leftDisk(s.tier.Hash(&addrs[i]), &addrs[i], block.Digest{})
	}
	return nil
}

// each calls visit with every block in RAM, under the lock. The lock is unlocked now and then.
func (s *Store) each(ctx context.Context, visit func(ram.ID)) error {
	for at := uint32(1); ; {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return ErrClosed
		}
		end := min(at+atOnce, s.tier.Slots())
		for ; at < end; at++ {
			if id := s.tier.Block(at); id != 0 {
				visit(id)
			}
		}
		over := at >= s.tier.Slots()
		s.mu.Unlock()
		if err := ctx.Err(); over || err != nil {
			return err
		}
	}
}
