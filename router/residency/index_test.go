package residency

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

func TestMoreNodesThanATableHas(t *testing.T) {
	for _, nodes := range []int{64, 65, 1000} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			x := New(Options{MaxBlocks: 1 << 16})
			feeds := join(t, x, nodes)
			chain := made(1, nodes)
			for i, f := range feeds {
				f.store(t, 0, chain[:i+1])
			}
			for i, got := range lookup(x, chain, refsOf(feeds)) {
				if got != int32(i+1) {
					t.Fatalf("node %d: %d blocks, want %d", i, got, i+1)
				}
			}
			feeds[3].x.Leave(feeds[3].ref)
			if got := lookup(x, chain, refsOf(feeds))[3]; got != 0 {
				t.Fatalf("a node that has left holds %d blocks", got)
			}
		})
	}
}

// TestPlaceIsSweptBeforeItIsReused makes nodes join and leave until places are reused.
func TestPlaceIsSweptBeforeItIsReused(t *testing.T) {
	x := New(Options{MaxBlocks: 1 << 16})
	resident := join(t, x, 1)[0]
	chain := made(1, 20)
	for i := range 2*MaxNodes + 10 {
		n := &feed{x: x, ref: x.Join()}
		if got := lookup(x, chain, []Ref{n.ref})[0]; got != 0 {
			t.Fatalf("node %d has %d blocks when it joins", i, got)
		}
		n.store(t, 0, chain)
		x.Leave(n.ref)
		if i%100 == 0 {
			resident.store(t, 0, chain[:1])
		}
	}
	if st := x.Stats(); st.Nodes != 1 {
		t.Fatalf("%+v", st)
	}
}

func TestNumbersOfBatches(t *testing.T) {
	x := New(Options{})
	n := join(t, x, 1)[0]
	chain := made(1, 20)
	stored := []Event{{Kind: Stored, Keys: chain}}
	for _, c := range []struct {
		number uint64
		want   error
	}{{7, nil}, {7, ErrSeen}, {9, ErrGap}, {8, nil}} {
		if err := x.Apply(n.ref, c.number, stored); !errors.Is(err, c.want) {
			t.Fatalf("batch %d: %v, want %v", c.number, err, c.want)
		}
	}
	if err := x.Restart(n.ref, 3); err != nil {
		t.Fatal(err)
	}
	if got := lookup(x, chain, []Ref{n.ref})[0]; got != 0 {
		t.Fatalf("%d blocks after a restart", got)
	}
	if err := x.Apply(n.ref, 3, stored); err != nil {
		t.Fatal(err)
	}
	x.Leave(n.ref)
	if err := x.Apply(n.ref, 4, stored); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
	if err := x.Restart(n.ref, 4); !errors.Is(err, ErrLeft) {
		t.Fatal(err)
	}
}

// TestHoles checks that blocks behind a missing block do not count, and count again when it is
// back.
func TestHoles(t *testing.T) {
	x := New(Options{})
	n := join(t, x, 2)
	chain := made(1, 1000)
	n[0].store(t, 0, chain)
	n[1].store(t, chain[9], chain[10:])
	if got := lookup(x, chain, refsOf(n)); got[0] != 1000 || got[1] != 0 {
		t.Fatal(got)
	}
	n[1].store(t, 0, chain[:10])
	r := seeded(t)
	holes := r.Perm(len(chain))[:20]
	for _, i := range holes {
		n[0].apply(t, Event{Kind: Removed, Keys: chain[i : i+1]})
	}
	for len(holes) > 0 {
		if got := lookup(x, chain, refsOf(n)); int(got[0]) != slices.Min(holes) || got[1] != 1000 {
			t.Fatalf("%d, holes are %v", got, holes)
		}
		i := holes[0]
		holes = holes[1:]
		n[0].store(t, chain[max(i, 1)-1]*Key(min(i, 1)), chain[i:i+1])
	}
	if got, st := lookup(x, chain, refsOf(n)), x.Stats(); got[0] != 1000 || st.Blocks != 1000 {
		t.Fatal(got, st)
	}
}

func TestBoundAndRoomAfterNodesHaveLeft(t *testing.T) {
	const bound = 100_000
	x := New(Options{MaxBlocks: bound})
	feeds := join(t, x, 3)
	long := made(1, bound+100)
	feeds[0].store(t, 0, long)
	if st := x.Stats(); st.Blocks != bound || st.Overflow != 100 || float64(st.Bytes) > 24*bound {
		t.Fatalf("%+v", st)
	}
	feeds[1].store(t, 0, long[:bound])
	if st := x.Stats(); st.Blocks != bound || st.Overflow != 100 {
		t.Fatalf("another holder: %+v", st)
	}
	x.Leave(feeds[0].ref)
	x.Leave(feeds[1].ref)
	feeds[2].store(t, 0, made(2, bound))
	if st := x.Stats(); st.Blocks != bound || st.Overflow != 100 {
		t.Fatalf("after they have left: %+v", st)
	}
}

// TestPromptsThatPartWithinAGroup stores many prompts that share the beginning of a group.
func TestPromptsThatPartWithinAGroup(t *testing.T) {
	const prompts, shared, length = 2000, 3, 30
	x := New(Options{MaxBlocks: 1 << 18})
	n := join(t, x, 2)
	chains := make([]keys, prompts)
	for i := range chains {
		chains[i] = branch(made(0, shared), i+1, length)
		n[i%2].store(t, 0, chains[i])
	}
	for i, chain := range chains {
		if got := lookup(x, chain, refsOf(n)); got[i%2] != length || got[1-i%2] != shared {
			t.Fatalf("prompt %d: %d", i, got)
		}
	}
	if st := x.Stats(); st.Blocks != shared+prompts*(length-shared) || st.Single != (prompts-1)*(GroupBlocks-shared) {
		t.Fatalf("%+v", st)
	}
	for i, chain := range chains {
		n[i%2].apply(t, Event{Kind: Removed, Keys: chain[shared:]})
	}
	if st := x.Stats(); st.Blocks != shared || st.Single != 0 {
		t.Fatalf("%+v", st)
	}
	audit(t, x)
}

// TestRowIsOfOneChain checks that blocks behind a single block are not part of the row.
func TestRowIsOfOneChain(t *testing.T) {
	x := New(Options{})
	n := join(t, x, 1)
	one := made(1, 8)
	other := branch(one[:3], 2, GroupBlocks)
	n[0].store(t, 0, one)
	n[0].store(t, other[7], other[8:])
	if got := lookup(x, other, refsOf(n)); got[0] != 3 {
		t.Fatalf("%d blocks, want 3", got[0])
	}
	n[0].store(t, other[2], other[3:8])
	if got := lookup(x, other, refsOf(n)); got[0] != GroupBlocks {
		t.Fatalf("%d blocks, want all", got[0])
	}
	audit(t, x)
}

// TestSweepOfAMapThatIsCopied copies the map in the middle of a sweep.
func TestSweepOfAMapThatIsCopied(t *testing.T) {
	x := New(Options{})
	n := join(t, x, 2)
	for i := range 1000 {
		n[i%2].store(t, 0, branch(made(0, 3), i+1, GroupBlocks))
	}
	tab := x.shards[0].table.Load()
	m := tab.slots.Load()
	s := sweep{nodes: 1, rows: tab.top}
	if s.step(tab, tab.top+len(m.buckets)/2) {
		t.Fatal("there is nothing left to sweep")
	}
	tab.slots.Store(m.copied())
	for !s.step(tab, 10) {
	}
	x.shards[0].taken &^= 1
	audit(t, x)
}

// TestRowsThatAreNotThere stores more groups of one block than rows exist.
func TestRowsThatAreNotThere(t *testing.T) {
	const bound = 1 << 14
	x := New(Options{MaxBlocks: bound})
	n := join(t, x, 1)
	for i := range bound {
		n[0].store(t, 0, made(i, 1))
	}
	for i := range bound {
		if got := lookup(x, made(i, 2), refsOf(n)); got[0] != 1 {
			t.Fatalf("prompt %d: %d", i, got)
		}
	}
	if st := x.Stats(); st.Blocks != bound || st.Single == 0 || st.Overflow != 0 {
		t.Fatalf("%+v", st)
	}
}

func TestZeroAllocations(t *testing.T) {
	x := New(Options{MaxBlocks: 1 << 16})
	feeds := join(t, x, 100)
	chain := made(1, 5000)
	for _, f := range feeds {
		f.store(t, 0, chain)
	}
	refs, matched := refsOf(feeds), make([]int32, len(feeds))
	if n := testing.AllocsPerRun(100, func() { x.Lookup(&chain, refs, matched) }); n != 0 {
		t.Errorf("Lookup: %v allocations", n)
	}
	events := []Event{{Kind: Removed, Keys: chain[100:]}, {Kind: Stored, Parent: chain[99], Keys: chain[100:]}}
	if n := testing.AllocsPerRun(100, func() {
		if err := x.Apply(feeds[0].ref, feeds[0].next, events); err != nil {
			t.Fatal(err)
		}
		feeds[0].next++
	}); n != 0 {
		t.Errorf("Apply: %v allocations", n)
	}
}

// TestFullIndex fills all places. A node that does not fit gets none until another one leaves, and
// the blocks of all others are found.
func TestFullIndex(t *testing.T) {
	x := New(Options{})
	feeds := join(t, x, MaxNodes)
	if ref := x.Join(); ref != 0 || x.Room() != 0 {
		t.Fatalf("one more node got a place, %d are left", x.Room())
	}
	chain := made(1, 20)
	some := []*feed{feeds[0], feeds[MaxNodes/2], feeds[MaxNodes-1]}
	for i, f := range some {
		f.store(t, 0, chain[:5+i])
	}
	got := lookup(x, chain, refsOf(feeds))
	if got := []int32{got[0], got[1], got[MaxNodes/2], got[MaxNodes-1]}; !slices.Equal(got, []int32{5, 0, 6, 7}) {
		t.Errorf("%d blocks", got)
	}
	x.Leave(some[1].ref)
	late := &feed{x: x, ref: x.Join()}
	if late.ref == 0 || x.Room() != 0 {
		t.Fatalf("no place for a late node, %d are left", x.Room())
	}
	late.store(t, 0, chain[:9])
	if got := lookup(x, chain, []Ref{late.ref, some[1].ref, 0}); got[0] != 9 || got[1] != 0 || got[2] != 0 {
		t.Errorf("%d blocks", got)
	}
	for _, f := range append(feeds, late) {
		x.Leave(f.ref)
	}
	if st := x.Stats(); x.Room() != MaxNodes || st.Nodes != 0 || st.Blocks != 0 {
		t.Errorf("%d places are free after all have left, %+v", x.Room(), st)
	}
}
