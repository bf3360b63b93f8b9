package policy

import (
	"fmt"
	"math"
)

// leastLoaded takes the node with the lowest load. Among equal nodes the session's wins, else one
// at random.
type leastLoaded struct{}

func (leastLoaded) pick(s *Situation, e *Explanation) int {
	pick := least(s, anyDevice)
	if e != nil && pick >= 0 {
		e.Why = fmt.Sprintf("least loaded of %d candidates, %s", withRoom(s.Candidates), s.Candidates[pick].load()) +
			s.decided(pick, anyDevice)
	}
	return pick
}

// least returns the node of the class with room and with the lowest load, or -1. Among equal nodes
// the session's wins, else one at random.
func least(s *Situation, of class) int {
	l := occupancyOf(s.Candidates)
	best, lowest, bestDraw := -1, 0.0, uint64(0)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.Room() || of != anyDevice && c.class() != of {
			continue
		}
		load, draw := l.of(c), mix(s.Random+uint64(i))
		if i == s.Home-1 {
			draw = math.MaxUint64
		}
		if best < 0 || load < lowest || load == lowest && draw > bestDraw {
			best, lowest, bestDraw = i, load, draw
		}
	}
	return best
}

// decided says that the session has decided for pick, the choice of least, or "" if it has not.
func (s *Situation) decided(pick int, of class) string {
	if pick != s.Home-1 {
		return ""
	}
	l := occupancyOf(s.Candidates)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if i != pick && c.Room() && (of == anyDevice || c.class() == of) && l.of(c) == l.of(&s.Candidates[pick]) {
			return sessionDecided
		}
	}
	return ""
}

// sessionDecided ends the reason for a node that its load alone did not choose.
const sessionDecided = "; others are equal, and its session is there"
