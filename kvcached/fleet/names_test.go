package fleet

import (
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// bucket is the namespace of a tenant's i-th bucket.
func bucket(tenant string, i int) string {
	return block.Namespace{Space: fmt.Sprint("s3.bucket", i), Tenant: tenant}.String()
}

// TestNames checks that the last used names are known, and that one tenant's names do not displace
// another's.
func TestNames(t *testing.T) {
	n := newNames(16)
	knows := func(text string) bool { return n.byID[block.IDOf(text)] != nil }
	n.know(bucket("a", 0))
	for i := range 100 {
		n.know(bucket("b", i))
		n.know(bucket("b", 0))
		if i%2 == 0 {
			n.of(block.IDOf(bucket("b", 1)))
		}
	}
	for text, known := range map[string]bool{
		bucket("a", 0): true, bucket("b", 0): true, bucket("b", 1): true, bucket("b", 50): false, bucket("b", 98): true,
		bucket("b", 99): true,
	} {
		if knows(text) != known {
			t.Errorf("%s: %v", text, !known)
		}
	}
	if known, forgotten := n.stats(); known != 5 || forgotten != 100-4 {
		t.Error(known, forgotten)
	}
	for i := range 100 {
		n.know(bucket(fmt.Sprint("tenant", i), 0))
	}
	if known, _ := n.stats(); known != 16 || len(n.byText) != 16 || len(n.byID) != 16 || len(n.tenants) != 16 ||
		knows(bucket("a", 0)) || !knows(bucket("tenant84", 0)) {
		t.Error(known, len(n.byText), len(n.byID), len(n.tenants))
	}
	n.know(bucket("a", 0))
	if n.of(block.IDOf(bucket("a", 0))) != bucket("a", 0) {
		t.Error("one that was forgotten is known again when it is used")
	}
	one, two := bucket("a", 0), bucket("a", 1)
	if allocs := testing.AllocsPerRun(100, func() { n.know(one); n.know(two) }); allocs != 0 {
		t.Errorf("%v allocations for namespaces that are known", allocs)
	}
}

// TestForgottenNames checks that a block is found while its namespace is not known. The block is
// pulled once the namespace is known.
func TestForgottenNames(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	hosts := []*host{a, b, c}
	for _, h := range hosts {
		h.names = newNames(4)
		h.Know(keys.String())
		for i := range 9 {
			h.Know(bucket("", i))
		}
		if s := h.Stats(); s.Namespaces != 1 || s.NamespacesDropped != 9 || h.nameOf(keys.ID()) != "" {
			t.Fatal(s.Namespaces, s.NamespacesDropped)
		}
	}
	k := key("0")
	a.put(keys, k, "x")
	for _, h := range []*host{b, c} {
		eventually(t, "it is found", func() bool {
			i, err := h.Stat(t.Context(), k)
			return err == nil && i.Tiers == store.Remote
		})
		if h.text(k) != "" {
			t.Error("a block of a namespace that nobody has named is pulled")
		}
		h.Know(keys.String())
		eventually(t, "it is pulled", func() bool { return h.text(k) == "x" })
		h.Know(bucket("", 0))
		if h.names.of(keys.ID()) != "" || h.nameOf(keys.ID()) != keys.String() {
			t.Error("the namespace of a block that is here is known")
		}
	}
}
