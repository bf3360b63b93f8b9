package store

import "testing"

// calm forgets what was replaced on SSD, so that it goes there again.
func calm(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.churn.now.tags)
	clear(s.churn.before.tags)
}

// TestChurn overwrites a block again and again: the first time that it is on SSD costs a deletion
// there, and it does not go there again before some time has passed.
func TestChurn(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{RAM: 4 << 20})
	it := item(1, false)
	written := func() {
		put(t, s, it, fill(100, '2'))
		eventually(t, "a block that was put before is written", func() bool {
			_, there := g.disk.Find(it.Addr)
			return there
		})
	}
	put(t, s, it, fill(100, '1'))
	written()
	for i := range 100 {
		put(t, s, it, fill(100, byte(i)))
		get(t, s, it, fill(100, byte(i)))
	}
	if st := s.Stats(); st.DiskDeletes != 1 || st.WrittenBehind != 1 || st.BehindChanging < 100 {
		t.Errorf("%+v", st.Counts)
	}
	for range 2 * churnTicks {
		s.sweepSome()
	}
	written()
}

func BenchmarkOverwriteOnSSD(b *testing.B) {
	s, _ := tiered(b, b.TempDir(), Options{RAM: 4 << 20})
	for b.Loop() {
		put(b, s, item(1, false), fill(100, '1'))
	}
}
