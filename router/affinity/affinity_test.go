package affinity

import (
	"fmt"
	"testing"
)

func TestOldestIDMakesRoom(t *testing.T) {
	tab := New(3)
	for i := range 5 {
		tab.Set(fmt.Appendf(nil, "resp_%d", i), fmt.Sprint("node", i))
	}
	for i := range 5 {
		node, ok := tab.Node(fmt.Appendf(nil, "resp_%d", i))
		if want := i >= 2; ok != want || ok && node != fmt.Sprint("node", i) {
			t.Errorf("resp_%d: got %q, %v", i, node, ok)
		}
	}
	if tab.Len() != 3 {
		t.Errorf("Len = %d, want 3", tab.Len())
	}
}

func TestSetAgainMovesTheID(t *testing.T) {
	tab := New(2)
	tab.Set([]byte("resp_a"), "n1")
	tab.Set([]byte("resp_a"), "n2")
	if node, _ := tab.Node([]byte("resp_a")); node != "n2" || tab.Len() != 1 {
		t.Errorf("got %q, Len %d", node, tab.Len())
	}
}
