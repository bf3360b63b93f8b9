package ssd

import (
	"math"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// usage counts what the index has of each namespace. Namespaces beyond 65,535 share number 0, which
// nobody is told of.
type usage struct {
	mu      sync.Mutex
	numbers map[block.ModelID]uint16
	spaces  []taken
	unused  []uint16 // numbers whose last block went
}

// taken is what one namespace has.
type taken struct {
	id            block.ModelID
	blocks, bytes int64
}

// NamespaceUsage is what the blocks of a namespace take on disk.
type NamespaceUsage struct {
	Namespace string // canonical text
	Blocks    int
	Bytes     int64 // of segments, headers included, as a quota counts them
}

// add counts a block that the index is about to have, and returns the number of its namespace.
func (u *usage) add(id block.ModelID, bytes int64) uint16 {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, known := u.numbers[id]
	if !known {
		n = u.number(id)
	}
	u.spaces[n].blocks++
	u.spaces[n].bytes += bytes
	return n
}

// number gives a namespace one. The lock is held.
func (u *usage) number(id block.ModelID) (n uint16) {
	if u.spaces == nil {
		u.spaces, u.numbers = make([]taken, 1), map[block.ModelID]uint16{}
	}
	switch last := len(u.unused) - 1; {
	case last >= 0:
		n, u.unused = u.unused[last], u.unused[:last]
	case len(u.spaces) <= math.MaxUint16:
		n = uint16(len(u.spaces))
		u.spaces = append(u.spaces, taken{})
	default:
		return 0
	}
	u.spaces[n].id, u.numbers[id] = id, n
	return n
}

// sub takes off a block that add counted.
func (u *usage) sub(n uint16, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := &u.spaces[n]
	s.blocks--
	s.bytes -= bytes
	if s.blocks == 0 && n != 0 {
		delete(u.numbers, s.id)
		u.unused = append(u.unused, n)
	}
}

// Namespaces lists the namespaces that have blocks, in no order, as far as the index is loaded.
func (t *Tier) Namespaces() []NamespaceUsage {
	t.usage.mu.Lock()
	some := make([]taken, 0, len(t.usage.numbers))
	for _, n := range t.usage.numbers {
		some = append(some, t.usage.spaces[n])
	}
	t.usage.mu.Unlock()
	all := make([]NamespaceUsage, 0, len(some))
	for i := range some {
		if text := t.names.get(some[i].id); text != "" {
			all = append(all, NamespaceUsage{text, int(some[i].blocks), some[i].bytes})
		}
	}
	return all
}
