package dispatch

import "testing"

// TestMissingCounts: an engine is said to report none after a few answers without, one of which should have had one.
func TestMissingCounts(t *testing.T) {
	for name, c := range map[string]struct {
		answers string // r: with a count, u: without, m: without although some of the prompt was believed to be there
		want    int    // the answer with which it is said, from 1; 0: it is not
	}{
		"never, and believed": {"mmmmm", 3},
		"believed later":      {"uuuum", 5},
		"believed early":      {"muuu", 3},
		"nothing to report":   {"uuuuuuuu", 0},
		"two only":            {"mm", 0},
		"it does report":      {"rmmmmm", 0},
		"it does after all":   {"mmrmmm", 0},
	} {
		var counts cachedCounts
		said := 0
		for i, answer := range c.answers {
			if answer == 'r' {
				counts.seen.Store(true)
			} else if counts.missing(answer == 'm') {
				if said != 0 {
					t.Errorf("%s: said twice", name)
				}
				said = i + 1
			}
		}
		if said != c.want {
			t.Errorf("%s: said with answer %d, want %d", name, said, c.want)
		}
	}
}
