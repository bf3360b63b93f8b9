package prefix

import (
	"testing"
	"time"
)

// TestSieveKnowsTheHolders checks that the sieve names the holder of a group and few other nodes. A
// sweep forgets the groups of departed nodes, and keeps those that are recorded meanwhile.
func TestSieveKnowsTheHolders(t *testing.T) {
	x := newIndex(Options{})
	var refs []Ref
	for i := range 64 {
		refs = append(refs, x.Join(string(rune('a'+i))))
	}
	record := func(name string, ref Ref) *Chain {
		var c Chain
		c.Reset(Seed(name, "", ""), nil, make([]uint32, 40*BlockTokens))
		x.Record(&c, ref, time.Now())
		return &c
	}
	mine, other := record("mine", refs[3]), record("other", refs[5])
	nodes := func(c *Chain) uint64 { return x.table.sieve.nodesOf(c.leader(1)) }
	if nodes(mine) != bit(refs[3].place()) || nodes(other) != bit(refs[5].place()) {
		t.Fatalf("%b and %b", nodes(mine), nodes(other))
	}
	x.Leave(refs[3])
	late := record("late", refs[7])
	x.sweep()
	if nodes(mine) != 0 || nodes(other) != bit(refs[5].place()) || nodes(late) != bit(refs[7].place()) {
		t.Errorf("after a sweep %b, %b and %b", nodes(mine), nodes(other), nodes(late))
	}
}
