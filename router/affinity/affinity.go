// Package affinity remembers which node made which stored response, so that a request that
// names a response id goes to the one engine that can know it.
package affinity

import (
	"hash/maphash"
	"sync"
)

// Table maps response ids to node ids. It is bounded: the oldest id makes room for the
// newest. Ids are kept as 64-bit keyed hashes, 8 bytes whatever a client sends. Safe for
// concurrent use.
type Table struct {
	seed maphash.Seed

	mu    sync.Mutex
	nodes map[uint64]string
	ring  []uint64 // ids in order of arrival; next is the oldest once it is full
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

// Len is the number of ids remembered.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.nodes)
}
