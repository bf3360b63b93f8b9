package ssd

import (
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Pace of the search for expired blocks. A tick looks at expireLooks slots of the index or at one
// in expireTicks, whichever are more. Shards of the index in which nothing expires cost nothing.
const (
	expireEvery = time.Second
	expireTicks = 16
	expireLooks = 1 << 20
	expireBatch = 1024 // blocks of a shard that are dropped at a time
)

// dropExpired drops expired blocks until the tier closes. So routers forget the blocks soon after
// their expiry, and not only when reclaim comes to their segment.
func (t *Tier) dropExpired() {
	select {
	case <-t.ready:
	case <-t.stop.Done():
		return
	}
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for at := 0; ; {
		at = t.dropDue(at)
		select {
		case <-tick.C:
		case <-t.stop.Done():
			return
		}
	}
}

// dropDue drops the expired blocks of the index's shards from shard at on, and returns the shard
// where the next call goes on.
func (t *Tier) dropDue(at int) int {
	slots, _ := t.index.size()
	left := max(int(slots)/expireTicks, expireLooks)
	for range t.index.shards {
		for again := true; again; {
			found, looked := t.index.due(at, t.o.now().UnixMilli(), expireBatch)
			left -= looked
			if len(found) > 0 && (!t.dropFound(found) || t.stop.Err() != nil) {
				return (at + 1) % len(t.index.shards) // the disk fails; one batch a tick is enough
			}
			again = len(found) == expireBatch
		}
		if at = (at + 1) % len(t.index.shards); left <= 0 {
			break
		}
	}
	return at
}

// dropFound drops those of the entries that are still expired. false: the disk has failed, and some
// of them stay.
func (t *Tier) dropFound(found []entry) (ok bool) {
	ok = true
	addrs := make([]block.Addr, 0, len(found))
	for i := range found {
		switch a, err := t.addrOf(&found[i]); {
		case err == nil:
			addrs = append(addrs, a)
		case errors.Is(err, errRecord):
			t.dropNameless(&found[i])
		default:
			ok = false
		}
	}
	list := t.lockAll(addrs)
	defer t.unlockAll(list)
	gone := list[:0:0]
	for _, h := range list {
		if e, ok := t.index.get(h.hash); ok && e.state == stateLive && t.expired(e.expires) {
			gone = append(gone, h)
		}
	}
	if len(gone) == 0 {
		return ok
	}
	if t.bury(gone, false) != nil {
		return false
	}
	for _, h := range gone {
		t.stats.expired.Add(1)
		if t.o.Evicted != nil {
			t.o.Evicted(*h.addr)
		}
	}
	return ok
}

// addrOf reads the address of a record from its header. ErrMiss: the record's segment is gone, and
// so is the record's entry, or it moves.
func (t *Tier) addrOf(e *entry) (block.Addr, error) {
	s := t.segs.acquire(e.segment)
	if s == nil {
		return block.Addr{}, ErrMiss
	}
	defer t.release(s)
	head := t.pages.Get().(*[page]byte)
	defer t.pages.Put(head)
	if err := s.f.ReadAt([][]byte{head[:]}, int64(e.page)*page); err != nil {
		t.stats.readErrors.Add(1)
		return block.Addr{}, err
	}
	var h header
	if err := h.decode(head[:]); err != nil {
		return block.Addr{}, err
	}
	if h.place != e.place || h.salt != s.salt || h.seq != e.seq {
		return block.Addr{}, fmt.Errorf("%w: it belongs elsewhere", errRecord)
	}
	return h.Addr, nil
}

// dropNameless drops the entry of an expired record whose damaged header does not tell its address.
// Its row stays until the next start, and is expired as well. Until then routers count the block.
func (t *Tier) dropNameless(e *entry) {
	t.addrs.lock(e.hash)
	defer t.addrs.unlock(e.hash)
	if now, ok := t.index.get(e.hash); ok && now.state == stateLive && now.same(e) && t.expired(now.expires) {
		t.stats.corrupt.Add(1)
		t.forget(e.hash, e.seq)
	}
}
