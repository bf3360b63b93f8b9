package store

import "testing"

// calm clears churn, so that replaced blocks are written to SSD again.
func calm(s *Store) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.churn.now.tags)
	clear(s.churn.before.tags)
}

// TestChurn overwrites one block again and again. The first replacement deletes the block from SSD,
// and the block is not written there again for some time.
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
