package patience

import (
	"testing"
	"time"
)

// mixed sends short calls to all nodes, three each, and one long call per node and 100 ms. mixed
// returns the long calls once all calls have ended.
func (s *sim) mixed(longs int, shortMax, longMax int64) (long []*simRequest) {
	for range longs / len(s.nodes) {
		for i := range s.nodes {
			long = append(long, s.send(i, false, 300, longMax, 700))
		}
	}
	for len(s.reqs) > 0 && s.now.Before(long[0].sentAt.Add(time.Minute)) {
		if s.now.Sub(long[0].sentAt) < 3*time.Second {
			for i := range s.nodes[1:] {
				s.send(1+i, false, 300, shortMax, 5)
			}
		}
		s.run(100 * time.Millisecond)
	}
	return long
}

// TestLongCallsBesideShortOnesAreKept checks calls that may be longer than all calls that were
// answered. The times of the answered calls say nothing about them.
func TestLongCallsBesideShortOnesAreKept(t *testing.T) {
	for _, c := range []struct {
		name              string
		shortMax, longMax int64
	}{
		{"both bounded", 5, 700}, {"long without a bound", 5, 0}, {"of one octave more", 350, 700},
	} {
		for _, warm := range []bool{false, true} {
			for _, nodes := range []int{2, 4} {
				s := newSim(t, nodes)
				for range 20 {
					if !warm {
						break
					}
					for i := range s.nodes {
						s.send(i, false, 300, c.shortMax, 5)
					}
					s.run(200 * time.Millisecond)
				}
				long := s.mixed(8, c.shortMax, c.longMax)
				if n := s.givenUp(long); n != 0 || len(s.stalls) != 0 || len(s.reqs) != 0 {
					t.Errorf("%s, warm %v, %d nodes: %d of 8 given up, %d stalls, %d open",
						c.name, warm, nodes, n, len(s.stalls), len(s.reqs))
				}
			}
		}
	}
}

// TestLongCallsAreJudgedByOneAnother hangs a node after long calls were answered among short ones.
// The long calls on the node move.
func TestLongCallsAreJudgedByOneAnother(t *testing.T) {
	s := newSim(t, 4)
	s.mixed(32, 5, 700)
	s.nodes[0].hung = true
	long := s.spreadOver(8, false, 300, 700, 700)
	for range 300 {
		s.send(1, false, 300, 5, 5)
		s.run(100 * time.Millisecond)
	}
	for i, r := range long {
		if hung := i%4 == 0; hung != (r.verdict != 0) {
			t.Errorf("call %d: verdict %d, hung node: %v", i, r.verdict, hung)
		}
	}
}

// TestALongCallIsBoundedByItsOwnTokens checks that a call on a hung node moves when it has waited
// for four times its bound on tokens, although all answered calls were short.
func TestALongCallIsBoundedByItsOwnTokens(t *testing.T) {
	s := newSim(t, 4)
	s.warm(20, true)
	s.nodes[0].hung = true
	r := s.send(0, false, 300, 700, 700) // 7 s
	short := func(seconds int) {
		for range seconds {
			s.send(1, false, 300, 5, 5)
			s.run(time.Second)
		}
	}
	if short(25); r.verdict != 0 {
		t.Errorf("verdict %d within four times the longest answer", r.verdict)
	}
	if short(20); r.verdict != Stalled {
		t.Errorf("verdict %d after 45 s", r.verdict)
	}
}

// TestASlowNodeFinishesItsCalls checks a node that is five times as slow as its peers, with and
// without completion checks. Without them some calls move until the node gets the time it needs.
func TestASlowNodeFinishesItsCalls(t *testing.T) {
	for _, maxTokens := range []int64{0, 100} {
		for _, warm := range []bool{false, true} {
			for _, checked := range []bool{false, true} {
				s := newSim(t, 4)
				if warm {
					s.warm(20, false)
				}
				s.checked, s.nodes[0].slow = checked, 5
				lost, late := 0, 0
				for i := range 20 {
					reqs := s.spreadOver(16, false, 300, maxTokens, 100) // 1 s and 5 s
					for len(s.reqs) > 0 {
						s.run(100 * time.Millisecond)
					}
					n := s.givenUp(reqs)
					if lost += n; i >= 4 {
						late += n
					}
				}
				if late > 0 || checked && lost > 0 || s.nodes[0].served == 0 {
					t.Errorf("max_tokens %d, warm %v, checked %v: %d of 320 given up, %d of them late; %d answered",
						maxTokens, warm, checked, lost, late, s.nodes[0].served)
				}
			}
		}
	}
}

// TestAnAnsweredCheckKeepsCalls checks that calls stay on a node that answers a completion check,
// and that they move from a node that does not. The calls and their peers have no bound.
func TestAnAnsweredCheckKeepsCalls(t *testing.T) {
	for _, hung := range []bool{false, true} {
		s := newSim(t, 4)
		s.warm(20, false)
		s.checked, s.nodes[0].hung = true, hung
		long := []*simRequest{s.send(0, false, 300, 0, 2000), s.send(0, false, 300, 0, 2000)}
		for range 100 {
			s.spreadTo(1, 4)
			s.run(100 * time.Millisecond)
		}
		moved := 0
		if hung {
			moved = 2
		}
		if n := s.givenUp(long); n != moved || len(s.stalls) == 0 {
			t.Errorf("hung %v: %d of 2 moved, %d stalls", hung, n, len(s.stalls))
		}
	}
}
