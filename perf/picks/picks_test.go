package picks

import (
	"strings"
	"testing"
)

// TestPick checks that the picks are those of the mode, spread over nodes that are alike, and leave
// nothing behind.
func TestPick(t *testing.T) {
	for _, nodes := range []int{1, 8, 512} {
		for _, mode := range []string{"", "score", "cost"} {
			f, err := New(nodes, mode)
			if err != nil {
				t.Fatal(err)
			}
			picked := map[string]bool{}
			for range 200 {
				node, err := f.pick()
				if err != nil {
					t.Fatal(err)
				}
				picked[node] = true
			}
			if len(picked) < min(nodes, 8) {
				t.Errorf("%d nodes, mode %q: %v", nodes, mode, picked)
			}
			for _, n := range f.nodes.Load().Nodes {
				if n.InFlight() != working {
					t.Errorf("%d nodes, mode %q: %d requests at %s", nodes, mode, n.InFlight(), n.ID)
				}
			}
		}
	}
	if _, err := New(8, "nearest"); err == nil || !strings.Contains(err.Error(), "nearest") {
		t.Errorf("a mode that is none: %v", err)
	}
	f, err := New(0, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Pick(1); err == nil {
		t.Error("a fleet without nodes has one")
	}
}
