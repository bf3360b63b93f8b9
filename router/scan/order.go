package scan

import (
	"bytes"
	"cmp"
	"slices"
)

// Members of an object come in any order and are read in that order; their
// pieces of Text are then brought into the canonical one. Small objects are
// arranged at once. What large ones need is noted and carried out for a whole
// turn or prompt member in one pass, so that text is not copied once for each
// level that it is nested in.

// atOnce is the size in bytes of Text up to which an object is arranged at once.
const atOnce = 4 << 10

// segment is a piece of Text that one member of an object contributed.
type segment struct {
	rank       uint8
	start, end int
}

// member is a piece of Text that one member of a value contributed: its mark
// and name, Text[start+1:nameEnd], and its value up to end.
type member struct{ start, nameEnd, end int }

// piece is Text[start:end], not empty.
type piece struct{ start, end int }

// shuffle says that Text[from:to] is to be made of pieces[first:last], which lie
// in it in another order and fill it.
type shuffle struct{ from, to, first, last int }

// push records that the member of the given rank contributed Text[start:].
func (r *Request) push(rank uint8, start int) {
	r.segments = append(r.segments, segment{rank, start, len(r.Text)})
}

// arrange orders the segments from base on by rank, with their text, and
// forgets them. They are few and mostly in order already.
func (r *Request) arrange(base int) {
	s := r.segments[base:]
	byRank := func(a, b segment) int { return cmp.Compare(a.rank, b.rank) }
	if !slices.IsSortedFunc(s, byRank) && r.movable(s[0].start) {
		slices.SortFunc(s, byRank)
		first := len(r.pieces)
		for _, x := range s {
			r.place(x.start, x.end)
		}
		r.shuffle(first)
	}
	r.segments = r.segments[:base]
}

// sortMembers orders the members from base on by name, with their text, and
// forgets them. Members of the same name keep their order.
func (r *Request) sortMembers(base int) {
	m := r.members[base:]
	byName := func(a, b member) int {
		c := bytes.Compare(r.Text[a.start+1:a.nameEnd], r.Text[b.start+1:b.nameEnd])
		return cmp.Or(c, cmp.Compare(a.start, b.start))
	}
	if len(m) > 1 && !slices.IsSortedFunc(m, byName) {
		slices.SortFunc(m, byName)
		first := len(r.pieces)
		for _, x := range m {
			r.place(x.start, x.end)
		}
		r.shuffle(first)
	}
	r.members = r.members[:base]
}

// place puts Text[start:end] behind the pieces before.
func (r *Request) place(start, end int) {
	if start < end {
		r.pieces = append(r.pieces, piece{start, end})
	}
}

// shuffle brings Text into the order of the pieces from first on: now, or later
// where they are large.
func (r *Request) shuffle(first int) {
	pieces := r.pieces[first:]
	byStart := func(a, b piece) int { return cmp.Compare(a.start, b.start) }
	if slices.IsSortedFunc(pieces, byStart) {
		r.pieces = r.pieces[:first]
		return
	}
	from, to := pieces[0].start, pieces[0].end
	for _, p := range pieces {
		from, to = min(from, p.start), max(to, p.end)
	}
	if to-from > atOnce {
		r.shuffles = append(r.shuffles, shuffle{from, to, first, len(r.pieces)})
		return
	}
	r.spare = r.spare[:0]
	for _, p := range pieces {
		r.spare = append(r.spare, r.Text[p.start:p.end]...)
	}
	copy(r.Text[from:to], r.spare)
	r.pieces = r.pieces[:first]
}

// settleOrder carries out what shuffle has noted. Until then Text has the right
// bytes and length, but not the order.
func (r *Request) settleOrder() {
	if len(r.shuffles) == 0 {
		return
	}
	// One that contains another comes before it: it begins earlier or, since
	// it has more than one piece, ends later.
	slices.SortFunc(r.shuffles, func(a, b shuffle) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
	})
	from := r.shuffles[0].from
	r.spare = slices.Grow(r.spare[:0], len(r.Text)-from)
	r.emit(piece{from, len(r.Text)}, 0)
	copy(r.Text[from:], r.spare)
	r.shuffles, r.pieces = r.shuffles[:0], r.pieces[:0]
}

// emit appends the text of p in its final order to spare. Shuffles before next
// do not lie within p.
func (r *Request) emit(p piece, next int) {
	for {
		next += searchFrom(r.shuffles[next:], p.start)
		if next == len(r.shuffles) || r.shuffles[next].from >= p.end {
			r.spare = append(r.spare, r.Text[p.start:p.end]...)
			return
		}
		s := r.shuffles[next]
		next++
		r.spare = append(r.spare, r.Text[p.start:s.from]...)
		for _, inner := range r.pieces[s.first:s.last] {
			r.emit(inner, next)
		}
		p.start = s.to
	}
}

// searchFrom is the index of the first shuffle that begins at start or later.
func searchFrom(s []shuffle, start int) int {
	i, _ := slices.BinarySearchFunc(s, start, func(s shuffle, start int) int { return cmp.Compare(s.from, start) })
	return i
}

// followFirstTurn finds where the first turn ends once the order of the root members
// is settled.
func (r *Request) followFirstTurn() {
	for _, s := range r.segments {
		if !r.turned || r.turnEnd <= s.start || r.turnEnd > s.end {
			continue
		}
		turn := r.turnEnd - s.start
		for _, before := range r.segments {
			if before.rank < s.rank {
				turn += before.end - before.start
			}
		}
		r.FirstTurn = turn
		return
	}
}
