// Package affinity remembers which node made a stored response, and for whom. A request that names
// the response's id then goes to the engine that holds it.
package affinity

import (
	"hash/maphash"
	"sync"
)

// Made says how a stored response came about.
type Made struct {
	Node   string // its id
	Tenant string // that asked for the response; empty: the router itself
	Model  string // canonical; empty: unknown
}

// Table maps response ids to how the responses were made. When the table is full, the newest id
// replaces the oldest. Table keeps ids as 64-bit keyed hashes, so an id of any length costs 8
// bytes. Table is safe for concurrent use.
type Table struct {
	seed maphash.Seed

	mu   sync.Mutex
	made map[uint64]Made
	ring []uint64 // ids in order of arrival; once the ring is full, next is the oldest
	next int
}

// New returns a table for at most limit ids.
func New(limit int) *Table {
	return &Table{seed: maphash.MakeSeed(), made: make(map[uint64]Made), ring: make([]uint64, 0, limit)}
}

// Set notes how response id was made. A known id only changes its node, and only for its tenant,
// because some engines let clients choose the id of a response.
func (t *Table) Set(id []byte, m Made) {
	h := maphash.Bytes(t.seed, id)
	t.mu.Lock()
	defer t.mu.Unlock()
	if was, known := t.made[h]; known {
		if was.Tenant == m.Tenant {
			was.Node = m.Node
			t.made[h] = was
		}
		return
	}
	if len(t.ring) < cap(t.ring) {
		t.ring = append(t.ring, h)
	} else {
		delete(t.made, t.ring[t.next])
		t.ring[t.next] = h
		t.next = (t.next + 1) % len(t.ring)
	}
	t.made[h] = m
}

// Find returns how response id was made.
func (t *Table) Find(id []byte) (m Made, ok bool) {
	h := maphash.Bytes(t.seed, id)
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok = t.made[h]
	return m, ok
}

// Len returns the number of ids in the table.
func (t *Table) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.made)
}
