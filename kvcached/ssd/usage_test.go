package ssd

import (
	"maps"
	"testing"
)

// TestUsage: each namespace's blocks are counted when they come, are replaced and go, and after a
// restart.
func TestUsage(t *testing.T) {
	o := small(t.TempDir())
	tier := open(t, o)
	payload := make([]byte, 2*page)
	const each = 3 * page
	want := func(when string, counts map[string]int) {
		t.Helper()
		got := map[string]int{}
		for _, u := range tier.Namespaces() {
			got[u.Namespace] = u.Blocks
			if u.Bytes != int64(u.Blocks*each) {
				t.Errorf("%s: %+v", when, u)
			}
		}
		if !maps.Equal(got, counts) {
			t.Errorf("%s: %v, want %v", when, got, counts)
		}
	}
	a, b, c := ofTenant("a", 0).Namespace, ofTenant("b", 0).Namespace, ofTenant("c", 0).Namespace
	for i := range 6 {
		for range 2 { // the second one replaces the first
			if err := tier.Write(ctx, ofTenant("a", i), payload, true); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := tier.Write(ctx, ofTenant("b", 0), payload, true); err != nil {
		t.Fatal(err)
	}
	if _, err := tier.SetExpiry(ofTenant("b", 0).Addr, 1<<60); err != nil {
		t.Fatal(err)
	}
	want("written", map[string]int{a: 6, b: 1})
	mustClose(t, tier)
	tier = open(t, o)
	<-tier.Ready()
	want("after a restart", map[string]int{a: 6, b: 1})
	if n, err := tier.Delete(ctx, ofTenant("a", 3).Addr, ofTenant("b", 0).Addr); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	if err := tier.Write(ctx, ofTenant("c", 0), payload, false); err != nil { // with the number that b had
		t.Fatal(err)
	}
	want("deleted", map[string]int{a: 5, c: 1})
	if n, err := removeAll(tier, func(string) bool { return true }); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	want("purged", map[string]int{})
	mustClose(t, tier)
}
