package residency

import "testing"

// TestSlotsAgainstAMap adds and removes keys until dead slots, full buckets and copies occur.
func TestSlotsAgainstAMap(t *testing.T) {
	r := seeded(t)
	m, model := newSlots(0), map[uint64]uint64{}
	copies := 0
	for step := range 200_000 {
		key := 2 + r.Uint64N(4000)<<(r.Uint64N(2)*tagBits)
		if step > 100_000 {
			key += uint64(step/10_000) * 5000 // new keys, so that slots become dead
		}
		b, i := m.find(key)
		value, known := model[key]
		if (b != nil) != known || known && b.values[i] != value || m.get(key) != value {
			t.Fatalf("step %d: key %x is there: %v, want %v", step, key, b != nil, known)
		}
		switch {
		case known:
			m.remove(b, i)
			delete(model, key)
		case m.full():
			m = m.copied()
			copies++
		default:
			model[key] = r.Uint64() | 1
			if !m.put(key, model[key]) {
				t.Fatalf("step %d: no room", step)
			}
		}
	}
	for key, value := range model {
		if m.get(key) != value {
			t.Fatalf("key %x: %d, want %d", key, m.get(key), value)
		}
	}
	if m.live != len(model) || copies < 3 {
		t.Fatalf("%d keys, want %d, after %d copies", m.live, len(model), copies)
	}
}

// TestSlotsAreFound checks that no search in a large map with 70 % in use comes near its bound.
func TestSlotsAreFound(t *testing.T) {
	r := seeded(t)
	m := newSlots(1 << 16)
	longest := 0
	for !m.full() {
		key := uint64(KeyOf(r.Uint64(), 0, 0).leader())
		if m.get(key) != 0 {
			continue
		}
		m.put(key, 1)
		n, took := m.home(key), 1
		for ; m.buckets[n].at(key) == 0; took++ {
			n = m.after(n)
		}
		longest = max(longest, took)
	}
	if longest > maxSearch/2 {
		t.Fatalf("a search took %d buckets", longest)
	}
	t.Logf("the longest search takes %d buckets", longest)
}
