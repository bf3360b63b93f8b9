package scan

import (
	"bytes"
	"cmp"
	"slices"
	"strconv"
)

// Members of an object are read in the order of the body. The members' pieces of Text are then
// brought into canonical order. Small objects are sorted at once. The pieces of large objects are
// recorded and moved in one pass for a whole turn or prompt member. Nested text is then not copied
// once for each level.

// atOnce is the size in bytes of Text up to which an object is sorted at once.
const atOnce = 4 << 10

// order holds the pieces of Text that are not in order yet.
type order struct {
	segments []segment // of the open objects with known members
	members  []member  // of the open values, at most membersMost
	pieces   []piece   // of the shuffles, about piecesMost
	shuffles []shuffle
}

// segment is the piece of Text of one member of an object.
type segment struct {
	rank       uint8
	start, end int
}

// member is the piece of Text of one member of a value: its mark and name, Text[start+1:nameEnd],
// and its value up to end.
type member struct{ start, nameEnd, end int }

// piece is Text[start:end], not empty.
type piece struct{ start, end int }

// shuffle says that Text[from:to] must consist of pieces[first:last] in this order. The pieces fill
// Text[from:to] in another order.
type shuffle struct{ from, to, first, last int }

// push records Text[start:] as the piece of the member with the given rank.
func (r *Request) push(rank uint8, start int) {
	r.order.segments = append(r.order.segments, segment{rank, start, len(r.Text)})
	if len(r.Text) > textMost {
		r.tooLong()
	}
}

// pushMember records Text[start:] as the piece of a member of a value.
func (r *Request) pushMember(start, nameEnd int) {
	if len(r.order.members) == membersMost {
		r.fail(r.c.Pos(), CodeTooLarge, "`"+r.at.name()+"` has objects of more than "+strconv.Itoa(membersMost)+
			" members; send fewer")
		return
	}
	r.order.members = append(r.order.members, member{start, nameEnd, len(r.Text)})
	if len(r.Text) > textMost {
		r.tooLong()
	}
}

// arrange sorts the segments from base on by rank, together with their text. Then arrange drops the
// segments. The segments are few and mostly in order already.
func (r *Request) arrange(base int) {
	s := r.order.segments[base:]
	byRank := func(a, b segment) int { return cmp.Compare(a.rank, b.rank) }
	if !slices.IsSortedFunc(s, byRank) && r.movable(s[0].start) {
		slices.SortFunc(s, byRank)
		first := len(r.order.pieces)
		for _, x := range s {
			r.place(x.start, x.end)
		}
		r.shuffle(first)
	}
	r.order.segments = r.order.segments[:base]
}

// sortMembers sorts the members from base on by name, together with their text. Then sortMembers
// drops the members. Members of the same name keep their order.
func (r *Request) sortMembers(base int) {
	m := r.order.members[base:]
	byName := func(a, b member) int {
		c := bytes.Compare(r.Text[a.start+1:a.nameEnd], r.Text[b.start+1:b.nameEnd])
		return cmp.Or(c, cmp.Compare(a.start, b.start))
	}
	if len(m) > 1 && !slices.IsSortedFunc(m, byName) {
		slices.SortFunc(m, byName)
		first := len(r.order.pieces)
		for _, x := range m {
			r.place(x.start, x.end)
		}
		r.shuffle(first)
	}
	r.order.members = r.order.members[:base]
}

// place appends Text[start:end] to the pieces.
func (r *Request) place(start, end int) {
	if start < end {
		r.order.pieces = append(r.order.pieces, piece{start, end})
	}
}

// shuffle brings Text into the order of the pieces from first on: at once, or later if they are
// large.
func (r *Request) shuffle(first int) {
	o := &r.order
	pieces := o.pieces[first:]
	byStart := func(a, b piece) int { return cmp.Compare(a.start, b.start) }
	if slices.IsSortedFunc(pieces, byStart) {
		o.pieces = o.pieces[:first]
		return
	}
	from, to := pieces[0].start, pieces[0].end
	for _, p := range pieces {
		from, to = min(from, p.start), max(to, p.end)
	}
	if to-from > atOnce {
		o.shuffles = append(o.shuffles, shuffle{from, to, first, len(o.pieces)})
		if len(o.pieces) > piecesMost {
			r.settleOrder()
		}
		return
	}
	spare := r.scratch.spare[:0]
	for _, p := range pieces {
		spare = append(spare, r.Text[p.start:p.end]...)
	}
	copy(r.Text[from:to], spare)
	r.scratch.spare, o.pieces = spare, o.pieces[:first]
}

// settleOrder makes the moves that shuffle has recorded. Before settleOrder, Text has the right
// bytes and length, but not the right order. Open elements keep their places in Text.
func (r *Request) settleOrder() {
	o := &r.order
	if len(o.shuffles) == 0 {
		return
	}
	// A shuffle comes before the shuffles inside it. The outer shuffle begins earlier, or ends
	// later because it has more than one piece.
	slices.SortFunc(o.shuffles, func(a, b shuffle) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to))
	})
	from := o.shuffles[0].from
	r.scratch.spare = slices.Grow(r.scratch.spare[:0], len(r.Text)-from)
	r.emit(piece{from, len(r.Text)}, 0)
	copy(r.Text[from:], r.scratch.spare)
	o.shuffles, o.pieces = o.shuffles[:0], o.pieces[:0]
}

// emit appends the text of p in its final order to spare. All shuffles within p are at next or
// behind it.
func (r *Request) emit(p piece, next int) {
	o, spare := &r.order, &r.scratch.spare
	for {
		next += searchFrom(o.shuffles[next:], p.start)
		if next == len(o.shuffles) || o.shuffles[next].from >= p.end {
			*spare = append(*spare, r.Text[p.start:p.end]...)
			return
		}
		s := o.shuffles[next]
		next++
		*spare = append(*spare, r.Text[p.start:s.from]...)
		for _, inner := range o.pieces[s.first:s.last] {
			r.emit(inner, next)
		}
		p.start = s.to
	}
}

// searchFrom returns the index of the first shuffle that begins at start or later.
func searchFrom(s []shuffle, start int) int {
	i, _ := slices.BinarySearchFunc(s, start, func(s shuffle, start int) int { return cmp.Compare(s.from, start) })
	return i
}

// followFirstTurn finds the end of the first turn after the order of the root members is settled.
func (r *Request) followFirstTurn() {
	if r.turns.state != userTurnRead {
		return
	}
	for _, s := range r.order.segments {
		if r.turns.end <= s.start || r.turns.end > s.end {
			continue
		}
		turn := r.turns.end - s.start
		for _, before := range r.order.segments {
			if before.rank < s.rank {
				turn += before.end - before.start
			}
		}
		r.FirstTurn = turn
		return
	}
}
