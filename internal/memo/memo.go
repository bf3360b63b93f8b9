// Package memo is a bounded table from 64-bit keys to records of a fixed number of words.
//
// Neither Get nor Put ever waits: a record that is being replaced is a miss, and one that is being
// read is not replaced. Put replaces the record of its set that has not been used for the
// longest time. Keys are expected to be hashes under a secret, so that nobody can choose
// which records meet in a set; a record of another request with the same key would be
// taken for one's own.
package memo

import (
	"math/bits"
	"sync"
	"sync/atomic"
)

// ways is the number of records in a set.
const ways = 4

// set is what is known of four records; the records themselves lie in Table.records.
type set struct {
	mu   sync.RWMutex // only ever tried
	keys [ways]uint64 // 0 = empty
	used [ways]atomic.Uint64
}

// Table is such a table. It is safe for concurrent use.
type Table struct {
	words   int // of a record
	sets    []set
	records []uint64
	puts    atomic.Uint64 // the clock of set.used
}

// New makes a table for about as many records as fit in the given bytes, at least one set of
// them. Its memory becomes resident only as records come.
func New(bytes, recordWords int) *Table {
	n := max(bytes/(ways*8*(recordWords+2)), 1)
	return &Table{words: recordWords, sets: make([]set, n), records: make([]uint64, n*ways*recordWords)}
}

// Get copies the record of key into dst, which has its size, and reports whether there is one.
func (t *Table) Get(key uint64, dst []uint64) bool {
	at := t.set(key)
	s := &t.sets[at]
	if !s.mu.TryRLock() {
		return false
	}
	defer s.mu.RUnlock()
	for way := range s.keys {
		if s.keys[way] == key {
			copy(dst, t.record(at, way))
			if now := t.puts.Load(); s.used[way].Load() != now {
				s.used[way].Store(now)
			}
			return true
		}
	}
	return false
}

// Put makes src the record of key, which is not 0.
func (t *Table) Put(key uint64, src []uint64) {
	at := t.set(key)
	s := &t.sets[at]
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	now := t.puts.Add(1)
	way := s.victim(key, now)
	s.keys[way] = key
	s.used[way].Store(now)
	copy(t.record(at, way), src)
}

// victim is the way of key, or else the one that is empty or was not used for the longest time.
func (s *set) victim(key, now uint64) int {
	oldest, age := 0, uint64(0)
	for way := range s.keys {
		if s.keys[way] == key {
			return way
		}
		if old := now - s.used[way].Load(); old > age {
			oldest, age = way, old
		}
	}
	return oldest
}

func (t *Table) set(key uint64) int {
	at, _ := bits.Mul64(key*0x9e3779b97f4a7c15, uint64(len(t.sets)))
	return int(at)
}

func (t *Table) record(set, way int) []uint64 {
	return t.records[(set*ways+way)*t.words:][:t.words]
}
