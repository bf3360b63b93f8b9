// Package affinity remembers which node made a stored response. A request that names the response's
// id then goes to the engine that holds it.
package affinity

import (
	"hash/maphash"
	"sync"
)

// Table maps response ids to node ids. When the table is full, the newest id replaces the oldest.
// Table keeps ids as 64-bit keyed hashes, so an id of any length costs 8 bytes. Table is safe for
// concurrent use.
type Table struct {
	seed maphash.Seed

	mu    sync.Mutex
	nodes map[uint64]string
	ring  []uint64 // ids in order of arrival; once the ring is full, next is the oldest
	next  int
}

// New returns a table for at most limit ids.
func New(limit int) *Table {
	return &Table{seed: maphash.MakeSeed(), nodes: make(map[uint64]string), ring: make([]uint64, 0, limit)}
}

// Set notes that node made response id.
func (t *Table) Set(id []byte, node string) {
	h := maphash.Bytes(t.seed, id)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.nodes[h]; known {
		t.nodes[h] = node
		return
	}
	if len(t.ring) < cap(t.ring) {
		t.ring = append(t.ring, h)
	} else {
		delete(t.nodes, t.ring[t.next])
		t.ring[t.next] = h
		t.next = (t.next + 1) % len(t.ring)
	}
	t.nodes[h] = node
}

// Node returns the node that made response id.
func (t *Table) Node(id []byte) (node string, ok bool) {
	h := maphash.Bytes(t.seed, id)
	t.mu.Lock()
	defer t.mu.Unlock()
	node, ok = t.nodes[h]
	return node, ok
}

// Len returns the number of ids in the table.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes)
}
