package patience

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestSlowFleets slows a whole fleet down, at various sizes and traffic densities. At most one or
// two streams in a hundred may be tried elsewhere, and only where no peer allows a comparison.
func TestSlowFleets(t *testing.T) {
	for _, slow := range []float64{3, 10, 40} {
		for _, gap := range []time.Duration{50, 200, 1000} {
			for _, nodes := range []int{2, 4, 8} {
				s := newSim(t, nodes)
				s.rng = rand.New(rand.NewPCG(uint64(gap), uint64(nodes)))
				s.warm(20, true)
				for _, n := range s.nodes {
					n.slow = slow
				}
				if n := s.ofHundredGivenUp(gap * time.Millisecond); n > 2 {
					t.Errorf("%v times slower, every %d ms, %d nodes: %d of 100 given up", slow, gap, nodes, n)
				}
			}
		}
	}
}

// TestFleetsThatSlowDownAfterAFewAnswers checks a cold fleet whose first answers are faster than
// all later ones.
func TestFleetsThatSlowDownAfterAFewAnswers(t *testing.T) {
	for _, slow := range []float64{10, 40} {
		for _, gap := range []time.Duration{0, 50, 200, 1000} {
			for _, nodes := range []int{2, 4, 8} {
				s := newSim(t, nodes)
				for i := range few {
					s.send(i%nodes, true, 100, 64, 20)
				}
				s.run(time.Second)
				for _, n := range s.nodes {
					n.slow = slow
				}
				if n := s.ofHundredGivenUp(gap * time.Millisecond); n > 2 {
					t.Errorf("%v times slower, every %d ms, %d nodes: %d of 100 given up", slow, gap, nodes, n)
				}
			}
		}
	}
}

// TestHangingNodes lets one node hang, warm or cold. All attempts at the hanging node are moved,
// and no other attempt is.
func TestHangingNodes(t *testing.T) {
	for _, stream := range []bool{true, false} {
		for _, nodes := range []int{2, 3, 4, 8} {
			for _, gap := range []time.Duration{0, 20, 100} {
				for seed := range uint64(4) {
					name := fmt.Sprintf("stream=%v nodes=%d gap=%dms seed=%d", stream, nodes, gap, seed)
					s := newSim(t, nodes)
					s.rng = rand.New(rand.NewPCG(seed, 7))
					if seed%2 == 0 {
						s.warm(10, stream)
					}
					s.hangAndSend16(name, stream, gap*time.Millisecond)
				}
			}
		}
	}
}

func (s *sim) hangAndSend16(name string, stream bool, gap time.Duration) {
	s.nodes[0].hung = true
	began := s.now
	var reqs []*simRequest
	for i := range 16 {
		reqs = append(reqs, s.send(i%len(s.nodes), stream, 100+s.rng.Int64N(900), 64, 20))
		s.run(gap)
	}
	for len(s.stalls) == 0 && s.now.Sub(began) < 10*time.Second {
		s.run(simStep)
	}
	if took := s.now.Sub(began); took > 2*time.Second {
		s.t.Errorf("%s: set aside after %v", name, took)
	}
	s.run(10 * time.Second)
	for i, r := range reqs {
		if hung := i%len(s.nodes) == 0; hung != (r.verdict != 0) {
			s.t.Errorf("%s: request %d: verdict %d, hung node: %v", name, i, r.verdict, hung)
		}
	}
}

// TestBurstsOfCallsAreWaitedFor sends bursts of unstreamed calls to a fleet that has become slower,
// or whose answers have become longer. One node is up to twice as slow as the rest. Many attempts
// that wait at one node must count no more than one attempt. A node may be set aside for a moment:
// at a chance of 1/100 that happens, and it costs no request.
func TestBurstsOfCallsAreWaitedFor(t *testing.T) {
	for _, slow := range []float64{1, 10} {
		for _, slower := range []float64{1, 1.5, 2} {
			for _, each := range []int{2, 24} {
				for _, longest := range []int64{10, 100, 1000} {
					name := fmt.Sprintf("%v times slower, one node %v times, %d calls each of up to %d tokens", slow,
						slower, each, longest)
					s := newSim(t, 4)
					s.warm(30, false)
					for _, n := range s.nodes {
						n.slow = slow
					}
					s.nodes[3].slow *= slower
					s.burstsOfCalls(name, each, longest)
				}
			}
		}
	}
}

func (s *sim) burstsOfCalls(name string, each int, longest int64) {
	var reqs []*simRequest
	for range 3 {
		for i := range each * len(s.nodes) {
			reqs = append(reqs, s.send(i%len(s.nodes), false, 100+s.rng.Int64N(1900), 0, 1+s.rng.Int64N(longest)))
		}
		for len(s.reqs) > 0 {
			s.run(100 * time.Millisecond)
		}
	}
	if n := s.givenUp(reqs); n > 0 || len(s.stalls) > 1 {
		s.t.Errorf("%s: %d of %d given up, %d stalls", name, n, len(reqs), len(s.stalls))
	}
}

// ofHundredGivenUp sends a hundred streams, one every gap. ofHundredGivenUp returns how many were
// to be tried elsewhere.
func (s *sim) ofHundredGivenUp(gap time.Duration) int {
	var reqs []*simRequest
	for range 100 {
		reqs = append(reqs, s.send(s.leastQueued(), true, 100+s.rng.Int64N(900), 64, 20))
		s.run(gap)
	}
	s.run(10 * time.Second)
	return s.givenUp(reqs)
}
