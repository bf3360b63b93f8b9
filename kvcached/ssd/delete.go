package ssd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// deleteBatch is how many addresses are deleted under lock at once.
const deleteBatch = 256

// Delete takes blocks out and returns how many there were. When it returns without an error, none
// comes back after a crash. ErrIO, ErrReadOnly, ErrClosed, or the error of ctx: any of the blocks
// may be there.
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
	doubt := t.doubt.any() // then each gets a tombstone
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
	if err := t.bury(there); err != nil {
		return 0, err
	}
	t.stats.deletes.Add(uint64(n))
	return n, nil
}

// bury makes durable that the addresses, which are locked, have nothing, and forgets their entries.
func (t *Tier) bury(list []hashed) error {
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
	if err := c.commit(true); err != nil {
		t.writeFailed("row", err)
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.dug(len(list))
	for _, h := range list {
		t.forget(h.hash, seq)
	}
	return nil
}

// SetExpiry sets when a block ends, in Unix ms (0: never), durably. false: there is no such block.
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

// Drop takes blocks out of what is found, from now on. Nothing is synced: the next Open may find
// them again, and asks Options.Dead.
func (t *Tier) Drop(addrs ...block.Addr) {
	c := t.rows.change()
	for i := range addrs {
		c.drop(&addrs[i])
	}
	list := t.lockAll(addrs)
	defer t.unlockAll(list)
	for _, h := range list {
		t.forget(h.hash, t.Seq()-1)
	}
	if err := c.commit(false); err != nil {
		t.writeFailed("row", err)
	}
}

// Seq is above the sequence numbers of all records, and not above those of later ones.
func (t *Tier) Seq() uint64 {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.log.seq + 1
}
