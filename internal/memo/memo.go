// Package memo is a bounded table from 64-bit keys to records of a fixed number of words.
//
// Neither Get nor Put ever waits. A record that is being replaced is a miss, and a record that is
// being read is not replaced. Put replaces the least recently used record of a set. Keys should be
// hashes under a secret, so that nobody can choose which records share a set. Two requests with the
// same key share a record.
package memo

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// ways is the number of records in a set.
const ways = 4

// set holds the metadata of four records in one cache line. The records themselves lie in
// Table.records.
type set struct {
	lock tryLock
	used [ways]atomic.Uint32
	keys [ways]uint64 // 0: empty
	_    [8]byte
}

// tryLock is a lock for readers or one writer that never waits. held is the number of readers, or
// writing.
type tryLock struct{ held atomic.Int32 }

const writing = -1

func (l *tryLock) read() bool {
	for {
		n := l.held.Load()
		if n == writing {
			return false
		}
		if l.held.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (l *tryLock) doneReading() { l.held.Add(-1) }
func (l *tryLock) write() bool  { return l.held.CompareAndSwap(0, writing) }
func (l *tryLock) doneWriting() { l.held.Store(0) }

// Table maps keys to records. A Table is safe for concurrent use.
type Table struct {
	words   int   // per record
	sets    []set // as records, outside Go's heap where the system allows it
	records []uint64
	puts    atomic.Uint32 // the clock of set.used; after it wraps, some old records look young
}

// New makes a table with about as many records as fit in this many bytes, and at least one set. The
// table's memory becomes resident only as records are added.
func New(bytes, recordWords int) *Table {
	n := max(bytes/(ways*8*(recordWords+2)), 1)
	const setWords = int(unsafe.Sizeof(set{}) / 8)
	t := &Table{words: recordWords}
	all := memory(n*(setWords+ways*recordWords), t)
	t.sets, t.records = unsafe.Slice((*set)(unsafe.Pointer(&all[0])), n), all[n*setWords:]
	return t
}

// Near loads into the processor's cache the data that Get reads first. Near takes little longer for
// several keys than for one.
func (t *Table) Near(key uint64) {
	t.sets[t.set(key)].lock.held.Load()
	runtime.KeepAlive(t)
}

// Get copies the record of key into dst, which has a record's size, and reports whether there is
// one. The key must not be 0, which an empty place has.
func (t *Table) Get(key uint64, dst []uint64) bool {
	defer runtime.KeepAlive(t)
	at := t.set(key)
	s := &t.sets[at]
	if !s.lock.read() {
		return false
	}
	defer s.lock.doneReading()
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

// Put makes src the record of key, which must not be 0.
func (t *Table) Put(key uint64, src []uint64) {
	defer runtime.KeepAlive(t)
	at := t.set(key)
	s := &t.sets[at]
	if !s.lock.write() {
		return
	}
	defer s.lock.doneWriting()
	now := t.puts.Add(1)
	way := s.victim(key, now)
	s.keys[way] = key
	s.used[way].Store(now)
	copy(t.record(at, way), src)
}

// victim returns the way of key, or else the way that is empty or least recently used.
func (s *set) victim(key uint64, now uint32) int {
	oldest, age := 0, uint32(0)
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
