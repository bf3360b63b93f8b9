package ssd

import (
	"hash/maphash"
	"maps"
	"math"
	"math/bits"
	"slices"
	"sync"
	"unsafe"

	"github.com/cognitora/dataplane/kv/block"
)

// entry is the index's 48 bytes about a record, without pointers. It has a keyed hash instead of
// the address: two addresses with the same hash (2^-64 per pair, and no outsider can find one)
// displace each other. Every read compares the full address.
type entry struct {
	hash    uint64
	seq     uint64
	expires int64
	place
	size  uint32
	crc   uint32
	flags uint16
	space uint16 // number of its namespace in usage
	state uint8  // 0: the slot is empty
	used  bool   // read since the record was written, or since reclaim last spared it
}

// States of an entry.
const (
	stateLive = 1
	stateDead = 2 // deleted while the rows are loaded, so that an older row does not come back
)

func (e *entry) bytes() int64 { return int64(recordPages(int(e.size), e.flags)) * page }

func (e *entry) same(o *entry) bool { return e.seq == o.seq && e.place == o.place }

// index finds entries by hash: shards of open addressing with linear probing, which grow by half.
type index struct {
	seed   maphash.Seed
	shards [indexShards]shard
}

const (
	indexShards   = 64
	shardBits     = 6
	shardSlotsMin = 16
)

type shard struct {
	mu    sync.Mutex
	slots []entry
	n     int
	next  int64 // no entry expires before, Unix ms
}

func newIndex() *index {
	x := &index{seed: maphash.MakeSeed()}
	for i := range x.shards {
		x.shards[i].next = math.MaxInt64
	}
	return x
}

func (x *index) hash(a *block.Addr) uint64 {
	var key [rowKeySize]byte
	return maphash.Bytes(x.seed, appendAddr(key[:0], a))
}

// shard returns the shard of a hash, chosen by its top bits; the other bits choose the slot.
func (x *index) shard(h uint64) *shard { return &x.shards[h>>(64-shardBits)] }

func (s *shard) home(h uint64) int {
	i, _ := bits.Mul64(h<<shardBits, uint64(len(s.slots)))
	return int(i)
}

// find returns the slot of h, or the empty one where it would go. There is always an empty one.
func (s *shard) find(h uint64) int {
	i := s.home(h)
	for s.slots[i].state != 0 && s.slots[i].hash != h {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	return i
}

// get returns the entry of h, also a dead one.
func (x *index) get(h uint64) (entry, bool) {
	e, ok, _ := x.mark(h, nil)
	return e, ok
}

// mark sets whether the entry of h is used, unless used is nil. It returns the entry, and whether
// it has changed.
func (x *index) mark(h uint64, used *bool) (found entry, ok, changed bool) {
	s := x.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 {
		return entry{}, false, false
	}
	e := &s.slots[s.find(h)]
	if e.state == 0 {
		return entry{}, false, false
	}
	if used != nil && e.state == stateLive && e.used != *used {
		e.used, changed = *used, true
	}
	return *e, true, changed
}

// put sets the entry of e.hash and returns the previous one, with state 0 if there was none. The
// previous entry stays if keep is not nil and returns true.
func (x *index) put(e entry, keep func(old *entry) bool) (old entry, done bool) {
	s := x.shard(e.hash)
	s.mu.Lock()
	defer s.mu.Unlock()
	if (s.n+1)*100 > len(s.slots)*85 {
		s.grow()
	}
	slot := &s.slots[s.find(e.hash)]
	old = *slot
	if keep != nil && keep(slot) {
		return old, false
	}
	if old.state == 0 {
		s.n++
	}
	*slot = e
	if e.expires != 0 && e.state == stateLive {
		s.next = min(s.next, e.expires)
	}
	return old, true
}

// remove removes the entry of h and returns it.
func (x *index) remove(h uint64) (entry, bool) {
	s := x.shard(h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.n == 0 {
		return entry{}, false
	}
	i := s.find(h)
	e := s.slots[i]
	if e.state == 0 {
		return entry{}, false
	}
	s.cut(i)
	return e, true
}

// cut empties slot i and closes the gap.
func (s *shard) cut(i int) {
	s.n--
	for j := i; ; {
		s.slots[i] = entry{}
		for {
			if j++; j == len(s.slots) {
				j = 0
			}
			if s.slots[j].state == 0 {
				return
			}
			home := s.home(s.slots[j].hash)
			if i <= j && (home <= i || home > j) || i > j && home <= i && home > j {
				break
			}
		}
		s.slots[i] = s.slots[j]
		i = j
	}
}

func (s *shard) grow() {
	old := s.slots
	s.slots = make([]entry, max(shardSlotsMin, len(old)+len(old)/2))
	for i := range old {
		if old[i].state != 0 {
			s.slots[s.find(old[i].hash)] = old[i]
		}
	}
}

// sweep removes the dead entries.
func (x *index) sweep() {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		var dead []uint64
		for j := range s.slots {
			if s.slots[j].state == stateDead {
				dead = append(dead, s.slots[j].hash)
			}
		}
		for _, h := range dead {
			s.cut(s.find(h))
		}
		s.mu.Unlock()
	}
}

// due returns up to most entries of shard i that have expired by now, in Unix ms, and the number of
// slots that it has looked at. It looks at none if nothing in the shard can have expired.
func (x *index) due(i int, now int64, most int) (found []entry, looked int) {
	s := &x.shards[i]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next > now {
		return nil, 0
	}
	next := int64(math.MaxInt64)
	for j := range s.slots {
		e := &s.slots[j]
		if e.expires == 0 || e.state != stateLive {
			continue
		}
		if next = min(next, e.expires); e.expires > now {
			continue
		}
		if found = append(found, *e); len(found) == most {
			return found, j + 1
		}
	}
	s.next = next
	return found, len(s.slots)
}

// size returns the number of entries and their memory in bytes.
func (x *index) size() (records, bytes int64) {
	for i := range x.shards {
		s := &x.shards[i]
		s.mu.Lock()
		records += int64(s.n)
		bytes += int64(len(s.slots)) * int64(unsafe.Sizeof(entry{}))
		s.mu.Unlock()
	}
	return records, bytes
}

// locks serialise writes, deletions and moves of one address, so that sequence numbers and places
// grow in the order in which the operations take effect. A lock exists while an operation uses it.
type locks struct {
	mu   sync.Mutex
	held map[uint64]chan struct{}
}

func (l *locks) lock(h uint64) {
	for {
		l.mu.Lock()
		ch, busy := l.held[h]
		if !busy {
			l.held[h] = make(chan struct{})
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		<-ch
	}
}

// await waits until the locks that are held now are released.
func (l *locks) await() {
	l.mu.Lock()
	held := slices.Collect(maps.Values(l.held))
	l.mu.Unlock()
	for _, ch := range held {
		<-ch
	}
}

func (l *locks) unlock(h uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.held[h])
	delete(l.held, h)
}
