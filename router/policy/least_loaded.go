package policy

import "fmt"

// leastLoaded takes the node with the lowest load. Equal nodes win at random.
type leastLoaded struct{}

func (leastLoaded) pick(s *Situation, e *Explanation) int {
	pick := least(s, anyDevice)
	if e != nil && pick >= 0 {
		e.Why = fmt.Sprintf("least loaded of %d candidates, %s", withRoom(s.Candidates), s.Candidates[pick].load())
	}
	return pick
}

// least returns the node of the class with room and with the lowest load, or -1.
func least(s *Situation, of class) int {
	l := occupancyOf(s.Candidates)
	best, lowest, bestDraw := -1, 0.0, uint64(0)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.Room() || of != anyDevice && c.class() != of {
			continue
		}
		load, draw := l.of(c), mix(s.Random+uint64(i))
		if best < 0 || load < lowest || load == lowest && draw > bestDraw {
			best, lowest, bestDraw = i, load, draw
		}
	}
	return best
}
