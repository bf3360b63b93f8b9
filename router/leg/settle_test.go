package leg

import (
	"testing"
	"time"
)

// TestMissingCounts: an engine is said to report none after a few answers without, which should
// have had one.
func TestMissingCounts(t *testing.T) {
	for name, c := range map[string]struct {
		// r: with a count, u: without, m: without although some of the prompt was believed to be
		// there, c: likewise, sent with the first
		answers string
		want    int // the answer with which it is said, from 1; 0: it is not
	}{
		"never, and believed": {"ummmmm", 6},
		"believed at once":    {"mmmmmm", 6},
		"believed later":      {"uuuummmmm", 9},
		"nothing to report":   {"uuuuuuuu", 0},
		"four only":           {"ummmm", 0},
		"all in prefill":      {"uccccccc", 0},
		"it does report":      {"rmmmmmm", 0},
		"it does after all":   {"ummrmmmm", 0},
	} {
		var counts cachedCounts
		said := 0
		began := time.Unix(1, 0)
		for i, answer := range c.answers {
			sent := began
			if answer != 'c' {
				sent = began.Add(time.Duration(i) * time.Minute)
			}
			if answer == 'r' {
				counts.seen.Store(true)
			} else if counts.missing(answer != 'u', sent, began.Add(time.Duration(i)*time.Minute+time.Second)) {
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
