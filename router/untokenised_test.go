package router

import (
	"fmt"
	"slices"
	"testing"
)

// TestComplaintsAreMadeOnce checks that each node and model is logged once, though the node leaves
// and comes back. The memory for logged nodes is bounded.
func TestComplaintsAreMadeOnce(t *testing.T) {
	var u untokenised
	if got := u.fresh(); len(got) != 0 {
		t.Errorf("before anybody has looked: %q", got)
	}
	for _, c := range []struct {
		now   map[string]string
		fresh []string
	}{
		{map[string]string{"b": "m", "a": "m"}, []string{"a", "b"}},
		{map[string]string{"a": "m"}, nil},
		{map[string]string{"a": "m", "b": "m"}, nil},
		{map[string]string{"a": "m", "b": "n"}, []string{"b"}},
	} {
		u.models.Store(&c.now)
		if got := u.fresh(); !slices.Equal(got, c.fresh) {
			t.Errorf("%v: %q, want %q", c.now, got, c.fresh)
		}
	}
	for n := range 2 * maxSaid {
		u.models.Store(&map[string]string{fmt.Sprint(n): "m", "stays": "m"})
		if got := u.fresh(); slices.Contains(got, "stays") != (n == 0) || len(u.said) > maxSaid {
			t.Fatalf("node %d: %q, %d are remembered", n, got, len(u.said))
		}
	}
}
