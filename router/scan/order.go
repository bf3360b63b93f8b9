package scan

import (
	"bytes"
	"cmp"
	"slices"
)

// segment is a piece of Text that one member of an object contributed. Members
// come in any order; arrange brings their pieces into the canonical one.
type segment struct {
	rank       uint8
	start, end int
}

// push records that the member of the given rank contributed Text[start:].
func (r *Request) push(rank uint8, start int) {
	r.segments = append(r.segments, segment{rank, start, len(r.Text)})
}

// arrange sorts the segments from base on by rank, with their text, and forgets
// them. They are few and mostly in order already, so each one out of order is
// moved on its own.
func (r *Request) arrange(base int) {
	s := r.segments[base:]
	for i := 1; i < len(s); i++ {
		j := i
		for j > 0 && s[j-1].rank > s[i].rank {
			j--
		}
		if j < i {
			r.move(s, i, j)
		}
	}
	r.segments = r.segments[:base]
}

// move puts segment i in front of segment j, which comes before it.
func (r *Request) move(s []segment, i, j int) {
	moved, to := s[i], s[j].start
	n := moved.end - moved.start
	r.spare = append(r.spare[:0], r.Text[moved.start:moved.end]...)
	copy(r.Text[to+n:moved.end], r.Text[to:moved.start])
	copy(r.Text[to:], r.spare)
	if r.FirstTurn > to && r.FirstTurn <= moved.start {
		r.FirstTurn += n
	} else if r.FirstTurn > moved.start && r.FirstTurn <= moved.end {
		r.FirstTurn -= moved.start - to
	}
	for k := i; k > j; k-- {
		s[k] = segment{s[k-1].rank, s[k-1].start + n, s[k-1].end + n}
	}
	s[j] = segment{moved.rank, to, to + n}
}

// member is a piece of Text that one member of a value contributed: its mark
// and name, Text[start+1:nameEnd], and its value up to end.
type member struct{ start, nameEnd, end int }

// sortMembers sorts the members from base on by name, with their text, and
// forgets them. Members of the same name keep their order.
func (r *Request) sortMembers(base int) {
	m := r.members[base:]
	compare := func(a, b member) int {
		c := bytes.Compare(r.Text[a.start+1:a.nameEnd], r.Text[b.start+1:b.nameEnd])
		return cmp.Or(c, cmp.Compare(a.start, b.start))
	}
	if len(m) > 1 && !slices.IsSortedFunc(m, compare) {
		first, last := m[0].start, m[len(m)-1].end
		slices.SortFunc(m, compare)
		r.spare = r.spare[:0]
		for _, x := range m {
			r.spare = append(r.spare, r.Text[x.start:x.end]...)
		}
		copy(r.Text[first:last], r.spare)
	}
	r.members = r.members[:base]
}
