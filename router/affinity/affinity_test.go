package affinity

import (
	"fmt"
	"testing"
)

func TestOldestIDMakesRoom(t *testing.T) {
	tab := New(3)
	for i := range 5 {
		tab.Set(fmt.Appendf(nil, "resp_%d", i), Made{Node: fmt.Sprint("node", i)})
	}
	for i := range 5 {
		made, ok := tab.Find(fmt.Appendf(nil, "resp_%d", i))
		if want := i >= 2; ok != want || ok && made.Node != fmt.Sprint("node", i) {
			t.Errorf("resp_%d: got %q, %v", i, made.Node, ok)
		}
	}
	if tab.Len() != 3 {
		t.Errorf("Len = %d, want 3", tab.Len())
	}
}

func TestSetAgainMovesTheID(t *testing.T) {
	tab := New(2)
	tab.Set([]byte("resp_a"), Made{Node: "n1"})
	tab.Set([]byte("resp_a"), Made{Node: "n2"})
	if made, _ := tab.Find([]byte("resp_a")); made.Node != "n2" || tab.Len() != 1 {
		t.Errorf("got %q, Len %d", made.Node, tab.Len())
	}
}

// TestAnotherTenantTakesNoID checks that an id stays with the tenant that has made it.
func TestAnotherTenantTakesNoID(t *testing.T) {
	tab, id := New(2), []byte("resp_a")
	own := Made{Node: "n1", Tenant: "acme", Model: "m"}
	tab.Set(id, own)
	tab.Set(id, Made{Node: "n2", Tenant: "other", Model: "m"})
	if made, _ := tab.Find(id); made != own {
		t.Errorf("got %+v", made)
	}
}
