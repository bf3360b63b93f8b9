package books

import "testing"

// TestSharing checks how many active prompts have the beginning of another, and that none is left
// when their entries are closed.
func TestSharing(t *testing.T) {
	var s Sharing
	var b Book
	prompt := func(shared, own int) (keys []uint64) {
		for i := range shared + own {
			key := uint64(i)
			if i >= shared {
				key += uint64(1000 * own)
			}
			keys = append(keys, key)
		}
		return keys
	}
	entries := make([]Entry, 3)
	for i := range entries {
		b.Open(&entries[i], Cost{Blocks: 1}, noon)
		entries[i].Count(prompt(600, i+1), &s)
	}
	for _, c := range []struct{ shared, own, want int }{
		{600, 9, 3}, {512, 9, 3}, {511, 9, 0}, {1, 0, 3}, {1, 9, 0}, {0, 0, 0}, {600, 600, 0},
	} {
		if got := s.Sharers(prompt(c.shared, c.own)); got != c.want {
			t.Errorf("%d of %d blocks are shared: %d, want %d", c.shared, c.shared+c.own, got, c.want)
		}
	}
	for i := range entries {
		entries[i].Close(noon)
	}
	for i := range s {
		if n := s[i].Load(); n != 0 {
			t.Fatalf("%d prompts are left", n)
		}
	}
	for blocks, want := range map[int]int{0: 0, 1: 1, 2: 2, 3: 2, 1023: 512, 1024: 1024} {
		if got := Beginning(blocks); got != want {
			t.Errorf("the beginning of %d blocks has %d, want %d", blocks, got, want)
		}
	}
}
