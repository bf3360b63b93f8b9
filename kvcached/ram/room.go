package ram

import (
	"errors"
	"fmt"
)

// Errors of Reserve.
var (
	ErrFull  = errors.New("ram: all of the arena is in use, try again later")
	ErrQuota = errors.New("ram: over the quota")
)

// Room is the progress of a request for memory.
type Room struct {
	Parent ID // parent of the new block, which is evicted last; 0: none

	evicted uint32 // granules
	looked  uint32 // evicted at the last search for a window

	window   []ID   // blocks to evict together; some may be gone already
	from, to uint32 // the place of the window, in granules
	tree     ID     // where evicting the descendants of the last block continues
}

// evictionsAtOnce is how many blocks are evicted before the lock is released for a moment.
const evictionsAtOnce = 32

// Granules is how many granules n bytes need.
func Granules(n int) uint32 { return uint32(max(1, (n+Granule-1)/Granule)) }

// Reserve takes and holds a piece of at least n bytes for a block of namespace ns. It evicts other
// blocks if it must. If again is true, release the lock and call Reserve again with the same room.
func (t *Tier) Reserve(ns uint32, n int, room *Room) (x Ext, again bool, err error) {
	need := Granules(n)
	if again, err = t.underQuota(ns, need); again || err != nil {
		return 0, again, err
	}
	for range evictionsAtOnce {
		if id := t.extents.alloc(need); id != 0 {
			t.Hold(Ext(id))
			if q := t.names.At(ns).Quota; q != nil {
				q.Used += int64(need) * Granule
			}
			return Ext(id), false, nil
		}
		if !t.evictFor(need, room) {
			return 0, false, ErrFull
		}
	}
	return 0, true, nil
}

// Cancel gives back a reserved piece that was not published.
func (t *Tier) Cancel(ns uint32, x Ext) {
	if q := t.names.At(ns).Quota; q != nil {
		q.Used -= int64(t.extents.pieces.at(uint32(x)).size) * Granule
	}
	t.Drop(x)
}

// hopeless tells whether evicting everything possible would not free need granules.
func (t *Tier) hopeless(need uint32) bool {
	total := uint32(t.arena.Size() / Granule)
	return need > total-max(t.held, t.pinned)
}

// evictFor evicts towards a free piece of need granules. It evicts the oldest blocks first. If
// enough is free but in pieces, it evicts old neighbours. False: evicting is of no use.
func (t *Tier) evictFor(need uint32, room *Room) bool {
	if t.hopeless(need) {
		return false
	}
	if len(room.window) > 0 {
		room.evicted += t.evictNext(room)
		return true
	}
	if room.evicted >= room.looked+need {
		room.looked = room.evicted
		if t.findWindow(need, room) {
			return true
		}
		if room.evicted > t.mostFor(need) {
			return false
		}
	}
	id := t.victim(room.Parent)
	if id == 0 {
		return false
	}
	room.evicted += t.evict(id)
	return true
}

// mostFor is how many granules may be evicted for one block before it is refused. Past that, pinned
// or read blocks keep free memory in pieces.
func (t *Tier) mostFor(need uint32) uint32 {
	return max(16*need, uint32(t.arena.Size()/Granule/8))
}

func (t *Tier) evict(id ID) (granules uint32) {
	if t.o.Evicted != nil {
		t.o.Evicted(id)
	}
	e := t.At(id)
	granules = t.extents.pieces.at(uint32(e.body)).size
	a := t.table.addr(e)
	t.remember(t.table.hash(&a), e, granules)
	t.Remove(id)
	t.counts.Evictions++
	t.counts.EvictedBytes += uint64(granules) * Granule
	return granules
}

// underQuota brings a namespace's account under its limit by evicting blocks of that account.
func (t *Tier) underQuota(ns, need uint32) (again bool, err error) {
	q := t.names.At(ns).Quota
	if q == nil {
		return false, nil
	}
	if int64(need)*Granule > q.Limit {
		return false, fmt.Errorf("%w: %q may use %d bytes", ErrQuota, q.Account, q.Limit)
	}
	for range evictionsAtOnce {
		if q.Used+int64(need)*Granule <= q.Limit {
			return false, nil
		}
		id := t.oldestOf(q)
		if id == 0 {
			return false, fmt.Errorf("%w: %q uses %d of %d bytes, and none of it can be evicted now", ErrQuota,
				q.Account, q.Used, q.Limit)
		}
		t.counts.QuotaEvicted++
		t.evict(id)
	}
	return true, nil
}

// Bounds of oldestOf, for each part.
const (
	quotaLooks = 8192
	quotaFinds = 32
)

// oldestOf returns about the oldest evictable block of an account. It looks at the fronts of the
// heaps, which have the oldest blocks.
func (t *Tier) oldestOf(q *Quota) (oldest ID) {
	for p := range t.parts {
		t.front(p, 0) // drops stale places in front
		found := 0
		for i := range min(t.parts[p].items.n, quotaLooks) {
			id := t.parts[p].items.at(i).id
			e := t.At(id)
			if !t.evictable(e) || t.names.At(e.NS()).Quota != q {
				continue
			}
			if oldest == 0 || e.stamp < t.At(oldest).stamp {
				oldest = id
			}
			if found++; found == quotaFinds {
				break
			}
		}
	}
	return oldest
}

// metaApart is the payload length, in bytes, from which key and attribute have granules of their
// own. Only zeros then follow the payload in its last granule, and it can be written to disk from
// its place.
const metaApart = 256 << 10

// MetaAt is the offset of key and attribute in a piece with a payload of length bytes.
func MetaAt(length int) int {
	if length >= metaApart {
		return (length + Granule - 1) &^ (Granule - 1)
	}
	return length
}

// PieceSize is how many bytes a payload needs with n bytes of key and attribute.
func PieceSize(length, n int) int {
	if n == 0 {
		return length
	}
	return MetaAt(length) + n
}

// Trim gives back the part of a reserved piece beyond n bytes.
func (t *Tier) Trim(ns uint32, x Ext, n int) {
	need := Granules(n)
	p := t.extents.pieces.at(uint32(x))
	if p.size <= need {
		return
	}
	rest := p.size - need
	t.held -= rest
	if q := t.names.At(ns).Quota; q != nil {
		q.Used -= int64(rest) * Granule
	}
	poison(t.Memory(x)[int64(need)*Granule:])
	t.extents.trim(uint32(x), need)
}

// Admit counts a piece on the namespace of its block. The piece was reserved for no namespace,
// number 0. Again means the same as in Reserve.
func (t *Tier) Admit(ns uint32, x Ext) (again bool, err error) {
	q := t.names.At(ns).Quota
	if q == nil {
		return false, nil
	}
	size := t.extents.pieces.at(uint32(x)).size
	if again, err = t.underQuota(ns, size); again || err != nil {
		return again, err
	}
	q.Used += int64(size) * Granule
	return false, nil
}
