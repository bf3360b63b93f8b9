package ram

import (
	"math/rand/v2"
	"testing"
)

// check walks the pieces and checks the invariants of extents.
func (x *extents) check(t *testing.T, granules uint32) {
	t.Helper()
	free, at, binned := uint32(0), uint32(0), 0
	before := extent{at: inUse}
	for id, prev := x.first, uint32(0); id != 0; {
		e := *x.pieces.at(id)
		if e.place() != at || e.prev != prev || e.size == 0 {
			t.Fatalf("piece %d is %+v after %d, expected at %d", id, e, prev, at)
		}
		if !e.used() {
			if !before.used() {
				t.Fatalf("free pieces side by side at %d", at)
			}
			free += e.size
			binned++
		}
		at, prev, before = at+e.size, id, e
		id = e.next
	}
	if at != granules || free != x.free {
		t.Fatalf("pieces end at %d of %d, %d free, said to be %d", at, granules, free, x.free)
	}
	for r := range x.head {
		for c, id := range x.head[r] {
			if (id != 0) != (x.column[r]&(1<<c) != 0) || (x.column[r] != 0) != (x.row&(1<<r) != 0) {
				t.Fatalf("bitmap of bin %d.%d", r, c)
			}
			for ; id != 0; id = x.pieces.at(id).mark {
				if br, bc := bin(x.pieces.at(id).size); br != r || bc != c || x.pieces.at(id).used() {
					t.Fatalf("piece %d is in the wrong bin", id)
				}
				binned--
			}
		}
	}
	if binned != 0 {
		t.Fatalf("%d free pieces are in no bin", binned)
	}
}

func TestExtents(t *testing.T) {
	const granules = 5000
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		x := newExtents(granules)
		var have []uint32
		for range 2000 {
			if rng.IntN(2) == 0 || len(have) == 0 {
				size := 1 + uint32(rng.ExpFloat64()*50)
				if id := x.alloc(size); id != 0 {
					if x.pieces.at(id).size != size {
						t.Fatal("seed", seed, "wrong size")
					}
					have = append(have, id)
				}
			} else {
				i := rng.IntN(len(have))
				x.give(have[i])
				have[i] = have[len(have)-1]
				have = have[:len(have)-1]
			}
		}
		x.check(t, granules)
		for _, id := range have {
			x.give(id)
		}
		x.check(t, granules)
		if x.largest() != granules {
			t.Fatal("seed", seed, "not one piece at the end")
		}
	}
}

func TestBins(t *testing.T) {
	row, column := 0, 0
	for size := uint32(1); size < 1<<20; size++ {
		r, c := bin(size)
		if r < row || r == row && c < column || c >= binColumns {
			t.Fatalf("%d is in bin %d.%d after %d.%d", size, r, c, row, column)
		}
		row, column = r, c
	}
	if r, c := bin(MaxArena / Granule); r >= binRows || c >= binColumns {
		t.Errorf("the largest piece is in bin %d.%d", r, c)
	}
}
