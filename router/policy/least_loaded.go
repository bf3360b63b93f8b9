package policy

import "fmt"

// leastLoaded takes the node with the lowest load. Equal nodes win at random.
type leastLoaded struct{}

func (leastLoaded) pick(s *Situation, e *Explanation) int {
	l := occupancyOf(s.Candidates)
	best, least, bestDraw := -1, 0.0, uint64(0)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.room() {
			continue
		}
		of, draw := l.of(c), mix(s.Random+uint64(i))
		if best < 0 || of < least || of == least && draw > bestDraw {
			best, least, bestDraw = i, of, draw
		}
	}
	if e != nil && best >= 0 {
		e.Why = fmt.Sprintf("least loaded of %d candidates, %s", withRoom(s.Candidates), s.Candidates[best].load())
	}
	return best
}
