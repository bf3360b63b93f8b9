package ssd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// deleteBatch is how many addresses are deleted under lock at once.
const deleteBatch = 256

// Delete removes blocks and returns how many existed. After success none comes back after a crash.
// After ErrIO, ErrReadOnly, ErrClosed or the error of ctx, any of the blocks may still exist.
func (t *Tier) Delete(ctx context.Context, addrs ...block.Addr) (n int, err error) {
	if !t.users.enter() {
		return 0, ErrClosed
	}
	defer t.users.leave()
	for some := range slices.Chunk(addrs, deleteBatch) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		deleted, err := t.deleteSome(some)
		if n += deleted; err != nil {
			return n, err
		}
	}
	return n, nil
}

type hashed struct {
	hash uint64
	addr *block.Addr
}

// lockAll locks the addresses in one order, so that two callers never wait for each other.
func (t *Tier) lockAll(addrs []block.Addr) []hashed {
	list := make([]hashed, len(addrs))
	for i := range addrs {
		list[i] = hashed{t.index.hash(&addrs[i]), &addrs[i]}
	}
	slices.SortFunc(list, func(a, b hashed) int {
		switch {
		case a.hash < b.hash:
			return -1
		case a.hash > b.hash:
			return 1
		}
		return 0
	})
	list = slices.CompactFunc(list, func(a, b hashed) bool { return a.hash == b.hash })
	for _, h := range list {
		t.addrs.lock(h.hash)
	}
	return list
}

func (t *Tier) unlockAll(list []hashed) {
	for _, h := range list {
		t.addrs.unlock(h.hash)
	}
}

func (t *Tier) deleteSome(addrs []block.Addr) (n int, err error) {
	list := t.lockAll(addrs)
	defer t.unlockAll(list)
	doubt := t.doubt.any() // then each address gets a tombstone
	var there []hashed
	for _, h := range list {
		found, err := t.stored(h.hash, h.addr)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrIO, err)
		}
		if found {
			n++
		}
		if found || doubt {
			there = append(there, h)
		}
	}
	if len(there) == 0 {
		return 0, nil
	}
	if err := t.bury(there, true); err != nil {
		return 0, err
	}
	t.stats.deletes.Add(uint64(n))
	return n, nil
}

// bury removes the rows and the entries of the locked addresses, and writes tombstones.
func (t *Tier) bury(list []hashed, durable bool) error {
	if t.rows.broken.Load() {
		return ErrReadOnly
	}
	t.log.mu.Lock()
	seq, end := t.log.seq, t.log.end()
	t.log.mu.Unlock()
	c := t.rows.change()
	for _, h := range list {
		c.bury(h.addr, seq, end)
	}
	if err := c.commit(durable); err != nil {
		t.writeFailed("row", err)
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.dug(len(list))
	for _, h := range list {
		t.forget(h.hash, seq)
	}
	return nil
}

// SetExpiry durably sets the time at which a block expires, in Unix ms; 0: never. false: the block
// does not exist.
func (t *Tier) SetExpiry(a block.Addr, unixMS int64) (bool, error) {
	if !t.users.enter() {
		return false, ErrClosed
	}
	defer t.users.leave()
	hash := t.index.hash(&a)
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	e, ok := t.find(&a, false)
	if !ok {
		if _, err := t.holds(hash, &a); err != nil {
			return false, fmt.Errorf("%w: %w", ErrIO, err)
		}
		return false, nil
	}
	r, ok, err := t.rows.get(&a)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrIO, err)
	}
	if !ok || r.seq != e.seq {
		return false, nil
	}
	r.expires, e.expires = unixMS, unixMS
	c := t.rows.change()
	c.put(&a, &r)
	if err := c.commit(true); err != nil {
		t.writeFailed("row", err)
		return false, fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.publish(&a, e)
	return true, nil
}

// Drop is Delete for many blocks, without a sync. The next Open may find the blocks again, unless
// Settle succeeds. It returns ErrIO, ErrReadOnly or ErrClosed.
func (t *Tier) Drop(addrs ...block.Addr) error {
	if !t.users.enter() {
		return ErrClosed
	}
	defer t.users.leave()
	for some := range slices.Chunk(addrs, deleteBatch) {
		list := t.lockAll(some)
		err := t.bury(list, false)
		t.unlockAll(list)
		if err != nil {
			return err
		}
	}
	return nil
}

// Settle makes the removals of Drop durable, and waits for the evictions that run. It returns
// ErrIO, ErrReadOnly or ErrClosed.
func (t *Tier) Settle() error {
	if !t.users.enter() {
		return ErrClosed
	}
	defer t.users.leave()
	t.addrs.await()
	if !t.loaded() || !t.checkpoint() {
		if err := t.rows.sync(); err != nil {
			t.writeFailed("row", err)
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
	if t.doubt.any() { // the next Open may find a record that has no row
		return fmt.Errorf("%w: a record of a failed write may come back after a crash", ErrIO)
	}
	return nil
}
