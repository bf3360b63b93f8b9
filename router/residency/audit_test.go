package residency

import (
	"math/bits"
	"testing"
)

// audit compares the tables of an index with each other. Every row has its slot, a row's notes fit
// its blocks, every single block is counted, and no free place holds a block.
func audit(t testing.TB, x *Index) {
	t.Helper()
	for s := range x.opened.Load() {
		sh := &x.shards[s]
		tab := sh.table.Load()
		places := sh.taken | sh.left
		singles, total := auditSingles(t, tab, places)
		rows := 0
		for n := range tab.top {
			r := tab.row(n)
			if r.id() == 0 {
				continue
			}
			rows++
			leader := Key(r.id()).leader()
			if got := tab.slots.Load().get(leader); got&rowMask != uint64(n)+1 || (got >= oneSingle) != r.crowded() {
				t.Fatalf("row %d: its slot has %x, crowded is %v", n, got, r.crowded())
			}
			total += auditRow(t, r, places)
		}
		free := 0
		for n := tab.free; n != 0; n = int(tab.row(n - 1).head().full) {
			free++
		}
		if rows+free != tab.top || total != tab.blocks {
			t.Fatalf("%d rows and %d free of %d, %d blocks of %d", rows, free, tab.top, total, tab.blocks)
		}
		auditSlots(t, tab, singles, rows)
	}
}

func auditSingles(t testing.TB, tab *holderTable, places uint64) (perLeader map[uint64]uint64, n int) {
	perLeader = map[uint64]uint64{}
	m := tab.slots.Load()
	for b := range m.buckets {
		for i, key := range &m.buckets[b].keys {
			if key&tagMask > dead {
				perLeader[Key(key).leader()]++
				n++
				if held := m.buckets[b].values[i]; held == 0 || held&^places != 0 {
					t.Fatalf("a single block is held by %x of %x", held, places)
				}
			}
		}
	}
	if n != tab.singles {
		t.Fatalf("%d single blocks, counted as %d", n, tab.singles)
	}
	return perLeader, n
}

// auditRow returns the number of blocks of a row.
func auditRow(t testing.TB, r row, places uint64) (n int) {
	t.Helper()
	known, all := r.known(), ^uint64(0)
	for i, held := range &r.holders[r.i] {
		all &= held
		n += min(bits.OnesCount64(held), 1)
		if held&^places != 0 || held != 0 && i >= known {
			t.Fatalf("block %d of %d is held by %x of %x", i, known, held, places)
		}
	}
	whole := known == GroupBlocks && r.id()&^crowded == wholeID(Key(r.tag(GroupBlocks-1))|Key(Key(r.id()).leader()))
	if known == 0 || r.holders[r.i][known-1] == 0 || r.head().full != all || whole != (r.id()&tagMask > crowded) {
		t.Fatalf("a row of %d blocks: id %x, full %x, want %x", known, r.id(), r.head().full, all)
	}
	return n
}

func auditSlots(t testing.TB, tab *holderTable, singles map[uint64]uint64, rows int) {
	t.Helper()
	m := tab.slots.Load()
	for leader, n := range singles {
		if got := m.get(leader) / oneSingle; got != n {
			t.Fatalf("%d single blocks of a group, counted as %d", n, got)
		}
	}
	for b := range m.buckets {
		for i, key := range &m.buckets[b].keys {
			if value := m.buckets[b].values[i]; key > dead && key&tagMask == 0 {
				if value == 0 || value/oneSingle != singles[key] {
					t.Fatalf("a group's slot has %x, it has %d single blocks", value, singles[key])
				}
				if value&rowMask != 0 {
					rows--
				}
			}
		}
	}
	if rows != 0 {
		t.Fatalf("%d rows more than slots", rows)
	}
}
