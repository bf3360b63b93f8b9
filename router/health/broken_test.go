package health

import (
	"testing"
	"time"
)

// TestBrokenTogether checks that after one broken connection the request or the node may be at
// fault. After two within a second the node is at fault.
func TestBrokenTogether(t *testing.T) {
	start := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		resets []time.Duration // the question is about the last one
		want   bool
	}{
		"alone":             {[]time.Duration{0}, false},
		"another with it":   {[]time.Duration{0, 10 * time.Millisecond}, true},
		"another long ago":  {[]time.Duration{0, 1500 * time.Millisecond}, false},
		"a burst":           {[]time.Duration{0, 900 * time.Millisecond, 1800 * time.Millisecond}, true},
		"a burst long over": {[]time.Duration{0, 1, 2, 5 * time.Second}, false},
	} {
		var b broken
		var at time.Time
		for _, after := range c.resets {
			at = start.Add(after)
			b.note(Reset, at)
		}
		if got := b.forOthers(at); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if !b.lately(at.Add(togetherWithin-1)) || b.lately(at.Add(togetherWithin)) {
			t.Errorf("%s: failed lately for another time than a second", name)
		}
	}
	var b broken
	b.note(Reset, start)
	b.note(ConnectError, start)
	if b.forOthers(start) {
		t.Error("a refused connection, as the end of a node brings them, excuses the request that may have ended it")
	}
	b.note(Reset, start.Add(time.Millisecond))
	if !b.forOthers(start) {
		t.Error("what broke a moment later does not count for the first")
	}
}
