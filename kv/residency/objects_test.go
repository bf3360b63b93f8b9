package residency

import (
	"encoding/binary"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/cognitora/dataplane/kv/block"
)

// told returns what a new watcher for routers, or for All, learns.
func told(t testing.TB, x *Index, all bool) map[at]Block {
	t.Helper()
	w := x.Watch(WatchOptions{All: all})
	defer w.Close()
	var m mirror
	m.drain(t, w)
	return m.all()
}

// TestObject checks that an object counts as all its blocks, at their places in the chain, until it
// leaves its last tier. Blocks that another object has as well stay.
func TestObject(t *testing.T) {
	x := New(Options{})
	space, chain, other := ranksOf("m", 64, 1, 1)[0], chainOf("p", 24), chainOf("p", 24)
	for i := 18; i < len(other); i++ { // in the middle of an object
		other[i] = block.Next(other[i-1], &[block.Tokens]uint32{uint32(i), 1})
	}
	expect := func(step string, blocks map[int]Tiers) {
		t.Helper()
		have := told(t, x, false)
		for i, tiers := range blocks {
			b := have[at{"", space, block.LayerAll, block.NameOf(&chain[i])}]
			if b.Tiers != tiers || tiers != 0 && (int(b.Position) != i+1 ||
				b.Leader != prefixOf(chain[i-i%GroupBlocks])) {
				t.Errorf("%s: block %d is %+v, want it in %b", step, i, b, tiers)
			}
		}
	}
	for from := 16; from >= 0; from -= 4 { // later blocks come first
		x.Apply(object(space, chain, from, from+3, Host, true, true))
	}
	x.Apply(object(space, other, 16, 19, Host, true, true))
	x.Apply(object(space, chain, 16, 19, Disk, true, true))
	expect("all there", map[int]Tiers{0: Host, 3: Host, 4: Host, 15: Host, 16: Host | Disk, 18: Host | Disk,
		19: Host | Disk})
	x.Apply(object(space, chain, 16, 19, Host, false, false))
	expect("evicted", map[int]Tiers{15: Host, 16: Host | Disk, 17: Host | Disk, 18: Disk, 19: Disk})
	x.Apply(object(space, chain, 16, 19, Disk, false, false))
	x.Apply(object(space, chain, 0, 3, Host, false, false))
	expect("gone", map[int]Tiers{0: 0, 3: 0, 4: Host, 16: Host, 17: Host, 18: 0, 19: 0})
	if x.own.shared != nil || x.own.count != 16 {
		t.Errorf("%d blocks, %d shared", x.own.count, len(x.own.shared))
	}
	x.Apply(object(space, chain, 20, 23, Host, true, false))
	wrong := object(space, chain, 20, 23, Host, true, true)
	wrong.Names = wrong.Names[:16]
	x.Apply(wrong)
	odd := ranksOf("m", 24, 1, 1)[0]
	x.Apply(object(odd, chain, 0, 1, Host, true, true))
	if x.own.count != 16 {
		t.Error("objects without their names count")
	}
}

// TestObjectBounds checks that an object counts as a whole or not at all.
func TestObjectBounds(t *testing.T) {
	x := New(Options{MaxBlocks: 6})
	space, chain := ranksOf("m", 64, 1, 1)[0], chainOf("p", 8)
	x.Apply(object(space, chain, 0, 3, Host, true, true))
	x.Apply(object(space, chain, 4, 7, Host, true, true))
	if st := x.Stats(); st.Blocks != 4 || st.Overflow != 4 {
		t.Errorf("%+v", st)
	}
	x.Apply(object(space, chain, 4, 7, Host, false, false))
	x.Apply(object(space, chain, 0, 3, Host, false, false))
	x.Apply(object(space, chain, 4, 7, Host, true, true))
	if st := x.Stats(); st.Blocks != 4 {
		t.Errorf("%+v", st)
	}
}

// TestHostileNames makes objects whose names contradict each other come and go. Nothing of them may
// stay.
func TestHostileNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := New(Options{})
		space := ranksOf("m", 64, 1, 1)[0]
		digest := func(what string) (d block.Digest) {
			binary.LittleEndian.PutUint64(d[:], uint64(rapid.IntRange(1, 7).Draw(t, what)))
			return d
		}
		here := map[block.Digest]Tiers{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			c := Change{Namespace: space, Tier: rapid.SampledFrom([]Tiers{Host, Disk}).Draw(t, "tier"),
				Present: rapid.Bool().Draw(t, "present"), Parent: digest("parent"),
				Addr: block.Addr{Digest: digest("last"), Model: block.IDOf(space), Layer: block.LayerAll}}
			if rapid.IntRange(0, 3).Draw(t, "first") == 0 {
				c.Parent = block.Digest{}
			}
			if here[c.Addr.Digest] &^= c.Tier; c.Present {
				here[c.Addr.Digest] |= c.Tier
				for range 3 {
					d := digest("name")
					c.Names = append(c.Names, d[:block.NameBytes]...)
				}
				if c.Names = block.ParseNames(block.AppendNames(nil, c.Names)); c.Names == nil {
					continue
				}
			}
			x.Apply(&c)
			for slot := range x.own.shared {
				if e := x.own.at(slot); e.tiers == 0 || x.own.shares(slot) == implied(e.tiers, e.objects()) {
					t.Fatalf("%+v is kept for %+v", x.own.shared[slot], e)
				}
			}
		}
		for d := range here {
			for _, tier := range []Tiers{Host, Disk} {
				x.Apply(&Change{Namespace: space, Tier: tier,
					Addr: block.Addr{Digest: d, Model: block.IDOf(space), Layer: block.LayerAll}})
			}
		}
		if st := x.Stats(); st.OwnBlocks != 0 || x.own.shared != nil || st.Waiting != 0 {
			t.Fatalf("%+v, %d shared", st, len(x.own.shared))
		}
	})
}

// TestRanks checks in which tiers a block counts whose parts lie in several ranks.
func TestRanks(t *testing.T) {
	chain := chainOf("p", 1)
	for _, shape := range [][2]uint32{{2, 1}, {1, 2}, {2, 2}, {8, 8}} {
		ranks := ranksOf("m", 16, shape[0], shape[1])
		n := len(ranks)
		for _, c := range []struct {
			what        string
			host, disk  int // that many ranks have it there; in Disk the last ones
			want, first Tiers
		}{
			{"everywhere in RAM", n, 0, Host, Host},
			{"everywhere on SSD", 0, n, Disk, Disk},
			{"everywhere in both", n, n, Host | Disk, Host | Disk},
			{"in RAM, and partly on SSD", n, n - 1, Host, Host},
			{"on SSD, and partly in RAM", n - 1, n, Disk, Host | Disk},
			{"in either", 1, n - 1, Disk, Host},
			{"missing in the last", n - 1, 0, 0, Host},
			{"missing in the first", 0, n - 1, 0, 0},
		} {
			for _, back := range []bool{false, true} { // rank 0 first, or last
				x := New(Options{})
				for i := range n {
					if back {
						i = n - 1 - i
					}
					x.Apply(change(ranks[i], chain, 0, Host, i < c.host))
					x.Apply(change(ranks[i], chain, 0, Disk, i >= n-c.disk))
				}
				key := at{"", ranks[0], block.LayerAll, block.NameOf(&chain[0])}
				if got := told(t, x, false); got[key].Tiers != c.want || len(got) != min(1, int(c.want)) {
					t.Errorf("%d ranks, %s: told %v", n, c.what, got)
				}
				if got := told(t, x, true); got[key].Tiers != c.first {
					t.Errorf("%d ranks, %s: rank 0 is told in %b", n, c.what, got[key].Tiers)
				}
			}
		}
	}
}

// TestTooManyRanks checks that an engine's own blocks count whatever its ranks, and the daemon's
// only up to MaxRanks.
func TestTooManyRanks(t *testing.T) {
	x, chain := New(Options{}), chainOf("p", 2)
	ranks := ranksOf("m", 16, 5, 13)
	for _, rank := range ranks {
		x.Apply(change(rank, chain, 0, Host, true))
	}
	must(t, x.Report(&Report{Engine: "e", Epoch: 1, Fresh: true, Events: []Event{{Kind: Stored, Namespace: ranks[0],
		Tier: Device, Digests: chain}}}))
	engines := at{"e", ranks[0], block.LayerAll, block.NameOf(&chain[0])}
	if got := told(t, x, false); len(got) != 2 || got[engines].Tiers != Device {
		t.Errorf("%v", got)
	}
	if len(x.namespaces.families) != 0 || len(told(t, x, true)) != len(ranks)+2 {
		t.Error("not as many blocks as ranks")
	}
}

// TestFamiliesComeAndGo checks that the numbers of ranks without blocks are reused.
func TestFamiliesComeAndGo(t *testing.T) {
	x, chain := New(Options{Ring: 4}), chainOf("p", 1)
	for i := range 300 {
		for _, present := range []bool{true, false} {
			for _, rank := range ranksOf(fmt.Sprint("m", i%20), 16, 2, 2) {
				x.Apply(change(rank, chain, 0, Host, present))
			}
			if got := told(t, x, false); (len(got) == 1) != present {
				t.Fatalf("%d: %v", i, got)
			}
		}
	}
	if n, f := len(x.namespaces.list), len(x.namespaces.families); n > 16 || f > 4 {
		t.Errorf("%d numbers, %d families", n, f)
	}
}

func TestApplyObjectsAllocates(t *testing.T) {
	x := New(Options{Ring: 1024})
	chain := chainOf("p", 100)
	var changes []*Change
	for _, present := range []bool{true, false} {
		for _, rank := range ranksOf("m", 64, 2, 1) {
			for from := 0; from < len(chain); from += 4 {
				changes = append(changes, object(rank, chain, from, from+3, Host, present, true))
			}
		}
	}
	i := 0
	if n := testing.AllocsPerRun(1000, func() {
		x.Apply(changes[i%len(changes)])
		i++
	}); n != 0 {
		t.Errorf("%v allocations per change", n)
	}
}

// TestRankComesBackElsewhere checks that a block of several ranks that leaves rank 0 and comes back
// at another place is first told as gone from its old place.
func TestRankComesBackElsewhere(t *testing.T) {
	x, ranks, chain := New(Options{}), ranksOf("m", 16, 2, 1), chainOf("p", 6)
	first := change(ranks[0], chain, 5, Host, true)
	first.Parent = block.Digest{} // so it counts as the first of a chain
	x.Apply(first)
	x.Apply(change(ranks[1], chain, 5, Host, true))
	w := x.Watch(WatchOptions{})
	defer w.Close()
	var m mirror
	m.drain(t, w)
	x.Apply(change(ranks[0], chain, 5, Host, false))
	for i := range chain {
		x.Apply(change(ranks[0], chain, i, Host, true))
	}
	var b Batch
	m.read(t, w, &b)
	var got []string
	for _, k := range b.Blocks {
		if k.Name == block.NameOf(&chain[5]) {
			got = append(got, fmt.Sprint(k.Position, " ", k.Tiers))
		}
	}
	if fmt.Sprint(got) != fmt.Sprint([]string{"1 0", fmt.Sprint(6, " ", Host)}) {
		t.Errorf("told %q", got)
	}
}

// TestParentComesLater gives a block that counted as the first of a chain a parent that nobody
// knows. The block's place is then unknown, and so is its leader. Watchers learn that it has left
// its old place.
func TestParentComesLater(t *testing.T) {
	x, space, chain := New(Options{}), spaceOf("m"), chainOf("p", 3)
	first := change(space, chain, 2, Host, true)
	first.Parent = block.Digest{}
	x.Apply(first)
	w := x.Watch(WatchOptions{})
	defer w.Close()
	var m mirror
	m.drain(t, w)
	x.Apply(change(space, chain, 2, Disk, true))
	var b Batch
	m.read(t, w, &b)
	if k := b.Blocks; len(k) != 2 || k[0].Position != 1 || k[0].Tiers != 0 || k[1].Position != 0 ||
		k[1].Tiers != Host|Disk {
		t.Errorf("told %+v", k)
	}
	key := at{"", space, block.LayerAll, block.NameOf(&chain[2])}
	if b := told(t, x, false)[key]; b.Position != 0 || b.Leader != 0 {
		t.Errorf("%+v", b)
	}
	for i := range chain {
		x.Apply(change(space, chain, i, Host, true))
	}
	if b := told(t, x, false)[key]; b.Position != 3 {
		t.Errorf("%+v", b)
	}
}
