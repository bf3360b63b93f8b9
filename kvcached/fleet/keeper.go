package fleet

import (
	"encoding/binary"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// keeper knows who has the blocks that this host keeps the location of.
type keeper struct {
	mu      sync.Mutex
	limit   int
	hosts   map[string]*hostState
	names   map[uint32]string // of the numbers that stand for somebody
	next    uint32
	entries map[entryKey]entry
	refused uint64
	swept   uint32 // next, when entries of nobody were looked for last

}

// hostState is how far a host's changes are known.
type hostState struct {
	number         uint32 // in entries; another one after each snapshot, so that all older ones are nobody's
	before         uint32 // the number before the snapshot that is being told; 0: none is
	epoch, version uint64
}

// entryKey is most of an address: a mistake costs a question to a host that then has no such block.
type entryKey [20]byte

// entry is who has a block; a further host takes the place of one of them. There are no pointers in
// it, nor in its key.
type entry struct {
	hosts   [wire.MaxHolders]uint32 // numbers; 0: none
	lengths [wire.MaxHolders]uint32 // bytes
}

// location is one host that has a block.
type location struct {
	host   string
	length uint32
}

func newKeeper(limit int) *keeper {
	return &keeper{limit: limit, hosts: map[string]*hostState{}, names: map[uint32]string{},
		entries: map[entryKey]entry{}}
}

func keyOf(a *block.Addr) (k entryKey) {
	le := binary.LittleEndian
	le.PutUint64(k[:], le.Uint64(a.Digest[:])^le.Uint64(a.Model[:]))
	le.PutUint64(k[8:], le.Uint64(a.Digest[8:])^le.Uint64(a.Model[8:]))
	le.PutUint32(k[16:], a.Layer)
	return k
}

// announce takes in what a host says. After a snapshot, what was said before it by the same start
// of the host counts until an announcement without changes says that everything has been told anew.
// The receipt of one that has left something out says how far it is known.
func (k *keeper) announce(a *wire.Announcement, snapshot bool) wire.Receipt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.take(a, snapshot)
}

// keep takes in what this host itself has, from any goroutine.
func (k *keeper) keep(self string, epoch uint64, changes []wire.Change) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := &wire.Announcement{Host: self, Epoch: epoch, Changes: changes}
	h := k.hosts[self]
	if h != nil {
		a.Version = h.version + 1
	}
	k.take(a, h == nil)
}

// take is announce with k.mu held.
func (k *keeper) take(a *wire.Announcement, snapshot bool) wire.Receipt {
	h := k.hosts[a.Host]
	switch {
	case snapshot:
		if h == nil && len(k.hosts) >= maxMembers {
			return wire.Receipt{}
		}
		k.next++
		was := h
		h = &hostState{number: k.next, epoch: a.Epoch, version: a.Version}
		if was != nil {
			delete(k.names, was.before)
			if was.epoch == a.Epoch {
				h.before = was.number
			} else {
				delete(k.names, was.number)
			}
		}
		k.hosts[a.Host], k.names[h.number] = h, a.Host
	case h == nil:
		return wire.Receipt{}
	case h.epoch != a.Epoch || a.Version != h.version+1:
		return wire.Receipt{Epoch: h.epoch, Version: h.version}
	case len(a.Changes) == 0:
		delete(k.names, h.before)
		h.before = 0
	default:
		h.version += uint64(len(a.Changes))
	}
	for i := range a.Changes {
		k.set(&a.Changes[i], h.number, h.before)
	}
	return wire.Receipt{Epoch: h.epoch, Version: h.version}
}

// set notes a change of the host with a number, and perhaps one before. k.mu is held.
func (k *keeper) set(c *wire.Change, number, before uint32) {
	key := keyOf(&c.Addr)
	e, there := k.entries[key]
	at, free := -1, 0
	for i := wire.MaxHolders - 1; i >= 0; i-- {
		n := e.hosts[i]
		if n == number || n != 0 && n == before {
			at = i
		}
		if _, somebody := k.names[n]; !somebody {
			e.hosts[i], free = 0, i
		}
	}
	if c.Tiers == 0 {
		if at >= 0 {
			e.hosts[at] = 0
		}
		if e.hosts == [wire.MaxHolders]uint32{} {
			delete(k.entries, key)
		} else {
			k.entries[key] = e
		}
		return
	}
	if !there && len(k.entries) >= k.limit && !k.sweep() {
		k.refused++
		return
	}
	if at < 0 {
		at = free
	}
	e.hosts[at], e.lengths[at] = number, uint32(min(c.Length, block.MaxPayload))
	k.entries[key] = e
}

// sweep takes out the entries that are nobody's, if a host may have left some, and tells whether
// there is room. k.mu is held.
func (k *keeper) sweep() bool {
	if k.swept != k.next {
		k.swept = k.next
		for key, e := range k.entries {
			if len(k.locations(&e, nil)) == 0 {
				delete(k.entries, key)
			}
		}
	}
	return len(k.entries) < k.limit
}

// locations appends who has the block of an entry. k.mu is held.
func (k *keeper) locations(e *entry, out []location) []location {
	for i, n := range e.hosts {
		if name, somebody := k.names[n]; somebody {
			out = append(out, location{name, e.lengths[i]})
		}
	}
	return out
}

// locate tells who has a block.
func (k *keeper) locate(a *block.Addr) (out []location) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, there := k.entries[keyOf(a)]; there {
		out = k.locations(&e, nil)
	}
	return out
}

// retain forgets the hosts that are in the fleet no more.
func (k *keeper) retain(r *roster) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, h := range k.hosts {
		if r.member(name) == nil {
			delete(k.hosts, name)
			delete(k.names, h.number)
			delete(k.names, h.before)
			k.next++ // so that a sweep finds what it has left
		}
	}
}

func (k *keeper) stats() (kept int64, refused uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.entries)), k.refused
}
