// Package memo is a bounded table from 64-bit keys to records of a fixed number of words.
//
// Get takes no lock and never waits: a record that is being replaced is a miss. Put replaces the
// record of its set that has not been used for the longest time. Keys are expected to be
// hashes under a secret, so that nobody can choose which records meet in a set; a record of
// another request with the same key would be taken for one's own.
package memo

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// ways is the number of records in a set.
const ways = 4

// Words of a slot before its record.
const (
	version  = iota // odd while the slot is written
	slotKey         // 0 = empty
	lastUsed        // by the table's own clock, which counts puts
	record
)

// Table is such a table. It is safe for concurrent use.
type Table struct {
	slots []atomic.Uint64
	slot  int    // words of one
	sets  uint64 // how many there are

	puts atomic.Uint64
	mu   sync.Mutex // held by Put
}

// New makes a table for about as many records as fit in the given bytes, at least one set of
// them. Its memory becomes resident only as records come.
func New(bytes, recordWords int) *Table {
	t := &Table{slot: record + recordWords}
	t.sets = uint64(max(bytes/(8*t.slot*ways), 1))
	t.slots = make([]atomic.Uint64, int(t.sets)*ways*t.slot)
	return t
}

// Get copies the record of key into dst, which has its size, and reports whether there is one.
func (t *Table) Get(key uint64, dst []uint64) bool {
	set := t.set(key)
	for way := range ways {
		s := set[way*t.slot:][:t.slot]
		before := s[version].Load()
		if s[slotKey].Load() != key || before&1 != 0 {
			continue
		}
		for i := range dst {
			dst[i] = s[record+i].Load()
		}
		if s[version].Load() != before {
			return false
		}
		if now := t.puts.Load(); s[lastUsed].Load() != now {
			s[lastUsed].Store(now)
		}
		return true
	}
	return false
}

// Put makes src the record of key, which is not 0.
func (t *Table) Put(key uint64, src []uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.puts.Add(1)
	s := t.victim(t.set(key), key, now)
	s[version].Add(1)
	s[slotKey].Store(key)
	for i, w := range src {
		s[record+i].Store(w)
	}
	s[lastUsed].Store(now)
	s[version].Add(1)
}

// victim is the slot of key, or else the one that is empty or was not used for the longest time.
func (t *Table) victim(set []atomic.Uint64, key, now uint64) []atomic.Uint64 {
	var oldest []atomic.Uint64
	age := uint64(0)
	for way := range ways {
		s := set[way*t.slot:][:t.slot]
		switch old := now - s[lastUsed].Load(); {
		case s[slotKey].Load() == key:
			return s
		case oldest == nil || old > age:
			oldest, age = s, old
		}
	}
	return oldest
}

func (t *Table) set(key uint64) []atomic.Uint64 {
	at, _ := bits.Mul64(key*0x9e3779b97f4a7c15, t.sets)
	words := ways * t.slot
	return t.slots[int(at)*words:][:words]
}
