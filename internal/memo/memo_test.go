package memo

import (
	"math/rand/v2"
	"sync"
	"testing"
)

// fill makes a record that shows its key, and whether it is complete.
func fill(key uint64, dst []uint64) []uint64 {
	for i := range dst {
		dst[i] = key + uint64(i)
	}
	return dst
}

func whole(key uint64, r []uint64) bool {
	for i := range r {
		if r[i] != key+uint64(i) {
			return false
		}
	}
	return true
}

func TestRecentRecordsStay(t *testing.T) {
	m := New(1, 5) // a table of one set
	got := make([]uint64, 5)
	for key := uint64(1); key <= ways; key++ {
		m.Put(key, fill(key, got))
	}
	for i := range uint64(10) {
		if !m.Get(1, got) || !whole(1, got) {
			t.Fatalf("the record in use is gone after %d puts", i)
		}
		m.Put(100+i, fill(100+i, got))
	}
	for key := uint64(2); key <= ways; key++ {
		if m.Get(key, got) {
			t.Errorf("record %d is still there", key)
		}
	}
	m.Put(1, fill(7, got))
	if !m.Get(1, got) || !whole(7, got) {
		t.Errorf("a record put again reads %v", got)
	}
}

func TestReadersSeeWholeRecords(t *testing.T) {
	const words, keys = 40, 64
	m := New(16*8*words, words)
	var wg sync.WaitGroup
	for w := range uint64(2) {
		wg.Go(func() {
			r, rec := rand.New(rand.NewPCG(w, 0)), make([]uint64, words)
			for range 20_000 {
				key := 1 + r.Uint64N(keys)
				m.Put(key, fill(key, rec))
			}
		})
		wg.Go(func() {
			r, rec := rand.New(rand.NewPCG(w, 1)), make([]uint64, words)
			for range 50_000 {
				key := 1 + r.Uint64N(keys)
				if m.Get(key, rec) && !whole(key, rec) {
					t.Errorf("record of %d reads %v", key, rec)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestNoAllocations(t *testing.T) {
	m, rec := New(1<<16, 20), make([]uint64, 20)
	if n := testing.AllocsPerRun(100, func() { m.Put(3, rec); m.Get(3, rec) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkGet(b *testing.B) {
	m, rec := New(32<<20, 86), make([]uint64, 86)
	for key := uint64(1); key < 10_000; key++ {
		m.Put(key, rec)
	}
	key := uint64(0)
	for b.Loop() {
		key = key%9_000 + 1
		m.Get(key, rec)
	}
}
