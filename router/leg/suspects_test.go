package leg

import (
	"slices"
	"testing"

	"github.com/cognitora/dataplane/router/policy"
)

// TestSuspectsAreLeftOut checks that suspects are left out, unless that would take more than half
// of the candidates.
func TestSuspectsAreLeftOut(t *testing.T) {
	for name, c := range map[string]struct {
		nodes    int
		suspects []int32
		left     []int32
	}{
		"none":                      {3, nil, []int32{0, 1, 2}},
		"one of three":              {3, []int32{1}, []int32{0, 2}},
		"half":                      {4, []int32{0, 3}, []int32{1, 2}},
		"one of two":                {2, []int32{0}, []int32{1}},
		"more than half":            {5, []int32{0, 1, 4}, []int32{0, 1, 2, 3, 4}},
		"all":                       {2, []int32{0, 1}, []int32{0, 1}},
		"the only one":              {1, []int32{0}, []int32{0}},
		"no candidate":              {0, nil, nil},
		"half of an odd number: no": {3, []int32{0, 1}, []int32{0, 1, 2}},
	} {
		l := &Leg{pool: &pool{}}
		for at := range c.nodes {
			l.pool.members = append(l.pool.members, &member{node: &nodeState{}})
			l.picks.able, l.picks.out = append(l.picks.able, int32(at)), append(l.picks.out, passes)
			l.picks.cands = append(l.picks.cands, policy.Candidate{IDHash: uint64(at)})
		}
		l.leaveOut(len(c.suspects), func(at int32) bool { return slices.Contains(c.suspects, at) })
		var left []int32
		for i, at := range l.picks.able {
			left = append(left, at)
			if l.picks.cands[i].IDHash != uint64(at) {
				t.Errorf("%s: place %d is not the candidate's", name, at)
			}
		}
		for at, f := range l.picks.out {
			if (f == suspected) == slices.Contains(c.left, int32(at)) {
				t.Errorf("%s: the reason against node %d is %q", name, at, f)
			}
		}
		if !slices.Equal(left, c.left) || len(l.picks.cands) != len(c.left) {
			t.Errorf("%s: %v are left, want %v", name, left, c.left)
		}
	}
	one, other := &member{node: &nodeState{}}, &member{node: &nodeState{}}
	l := &Leg{pool: &pool{members: []*member{one, other}}}
	l.picks = picks{able: []int32{0, 1}, cands: make([]policy.Candidate, 2), out: make([]filter, 2)}
	l.leaveOut(1, func(int32) bool { return true }) // the other node has become suspect since the count
	if len(l.picks.able) != 2 || l.picks.found != 0 || l.picks.out[0] != passes {
		t.Error("nobody is left")
	}
}

// TestSuspectsAreCountedByNode: the ranks of one suspect node of two are no majority.
func TestSuspectsAreCountedByNode(t *testing.T) {
	a, b := &nodeState{}, &nodeState{}
	l := &Leg{pool: &pool{members: []*member{{node: a}, {node: a}, {node: a}, {node: b}}}}
	l.picks = picks{able: []int32{0, 1, 2, 3}, cands: make([]policy.Candidate, 4), out: make([]filter, 4)}
	l.leaveOut(3, func(at int32) bool { return at < 3 })
	if !slices.Equal(l.picks.able, []int32{3}) {
		t.Errorf("%v are left", l.picks.able)
	}
}
