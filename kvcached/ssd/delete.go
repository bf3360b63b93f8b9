package ssd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// deleteBatch is how many addresses are deleted under lock at once.
const deleteBatch = 256

// Delete takes blocks out and returns how many there were. When it returns without an error, none
// comes back after a crash: the deletion was synced both in a segment and in the rows, so that
// either may be damaged. Where the disk cap is reached Delete waits for reclaim. ErrIO,
// ErrReadOnly, ErrClosed, or the error of ctx: any of the blocks may be there.
func (t *Tier) Delete(ctx context.Context, addrs ...block.Addr) (n int, err error) {
	if !t.users.enter() {
		return 0, ErrClosed
	}
	defer t.users.leave()
	for some := range slices.Chunk(addrs, deleteBatch) {
		if err := ctx.Err(); err != nil {
			return n, err
		}
		deleted, err := t.deleteSome(ctx, some)
		for errors.Is(err, errNoSpace) { // without the locks, which reclaim needs
			if err = t.awaitSpace(ctx, 1); err == nil {
				deleted, err = t.deleteSome(ctx, some)
			}
		}
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

func (t *Tier) deleteSome(ctx context.Context, addrs []block.Addr) (n int, err error) {
	list := t.lockAll(addrs)
	defer t.unlockAll(list)
	var there []hashed
	for _, h := range list {
		ok, err := t.holds(h.hash, h.addr)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", ErrIO, err)
		}
		if ok {
			there = append(there, h)
			if e, known := t.index.get(h.hash); !t.rebuilding.Load() || known && e.state == stateLive {
				n++
			}
		}
	}
	if len(there) == 0 {
		return 0, nil
	}
	if err := t.bury(ctx, there); err != nil {
		return 0, err
	}
	t.stats.deletes.Add(uint64(n))
	return n, nil
}

// bury makes durable, in the log and in the rows, that what the addresses have is dead, and forgets
// it.
func (t *Tier) bury(ctx context.Context, list []hashed) error {
	if t.rows.broken.Load() {
		return ErrReadOnly
	}
	b, c := burials{t: t}, t.rows.change()
	defer b.land()
	seqs := make([]uint64, 0, len(list))
	for some := range slices.Chunk(list, graveRoom) {
		graves := make([]grave, len(some))
		for i := range some {
			graves[i].addr = *some[i].addr
		}
		f, err := b.write(ctx, graves)
		if err != nil {
			c.discard()
			return err
		}
		for _, h := range some {
			c.bury(h.addr, f.seq, f.place)
			seqs = append(seqs, f.seq)
		}
	}
	if err := b.sync(); err != nil {
		c.discard()
		return err
	}
	if err := c.commit(true); err != nil {
		t.writeFailed("row", err)
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.dug(len(list))
	for i, h := range list {
		t.forget(h.hash, seqs[i])
		t.doubts.end(h.hash)
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

// Purge deletes every block that is there of the namespaces whose text match accepts.
func (t *Tier) Purge(ctx context.Context, match func(namespace string) bool) (n int, err error) {
	ids := t.names.matching(match)
	if len(ids) == 0 {
		return 0, nil
	}
	for cursor := uint64(0); ; {
		var found []block.Addr
		next, err := t.Scan(ctx, cursor, func(i Info) bool {
			if _, ok := ids[i.Addr.Model]; ok {
				found = append(found, i.Addr)
			}
			return true
		})
		if err != nil {
			return n, err
		}
		deleted, err := t.Delete(ctx, found...)
		if n += deleted; err != nil {
			return n, err
		}
		if cursor = next; cursor == 0 {
			t.ForgetNames()
			return n, nil
		}
	}
}

func (n *names) matching(match func(string) bool) map[block.ModelID]struct{} {
	n.mu.RLock()
	defer n.mu.RUnlock()
	ids := map[block.ModelID]struct{}{}
	for id, text := range n.text {
		if match(text) {
			ids[id] = struct{}{}
		}
	}
	return ids
}
