package fleet

import (
	"encoding/binary"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// keeper records the holders of the blocks that have this host as their keeper.
type keeper struct {
	mu      sync.Mutex
	limit   int
	hosts   map[string]*hostState
	names   map[uint32]string // hosts by their valid numbers
	next    uint32
	entries map[entryKey]entry
	refused uint64
	swept   uint32 // value of next at the last sweep

}

// hostState is the state of one host's announcements.
type hostState struct {
	number         uint32 // number in entries; a new one for each snapshot, so that older ones are invalid
	before         uint32 // the number before the snapshot in progress; 0: there is no snapshot in progress
	epoch, version uint64
}

// entryKey is most of an address. A collision costs a request to a host that does not have the
// block.
type entryKey [20]byte

// entry has the holders of one block. A further holder replaces one of the holders in a full entry.
// Neither entry nor entryKey has pointers, so the garbage collector does not scan the map.
type entry struct {
	hosts   [wire.MaxHolders]uint32 // numbers of hosts; 0: none
	lengths [wire.MaxHolders]uint32 // lengths of the block, in bytes
}

// location is one holder of a block.
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

// announce records an announcement. After a snapshot, earlier changes of the same epoch count until
// an announcement without changes ends the snapshot. If announcements were lost, the receipt says
// up to which version the keeper has the changes.
func (k *keeper) announce(a *wire.Announcement, snapshot bool) wire.Receipt {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.take(a, snapshot)
}

// keep records changes of this host itself. Any goroutine may call keep.
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

// take is announce; the caller holds k.mu.
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

// set records one change of a host. The entry may name the host by its number, or by the number
// that the host had before its snapshot. The caller holds k.mu.
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

// sweep removes entries without a valid holder, if there may be any, and tells whether there is
// room. The caller holds k.mu.
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

// locations appends the valid holders of an entry. The caller holds k.mu.
func (k *keeper) locations(e *entry, out []location) []location {
	for i, n := range e.hosts {
		if name, somebody := k.names[n]; somebody {
			out = append(out, location{name, e.lengths[i]})
		}
	}
	return out
}

// locate returns the holders of a block.
func (k *keeper) locate(a *block.Addr) (out []location) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e, there := k.entries[keyOf(a)]; there {
		out = k.locations(&e, nil)
	}
	return out
}

// retain forgets hosts that have left the fleet.
func (k *keeper) retain(r *roster) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, h := range k.hosts {
		if r.member(name) == nil {
			delete(k.hosts, name)
			delete(k.names, h.number)
			delete(k.names, h.before)
			k.next++ // makes the next sweep look for the host's entries
		}
	}
}

func (k *keeper) stats() (kept int64, refused uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return int64(len(k.entries)), k.refused
}
