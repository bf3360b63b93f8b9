package policy

import "fmt"

// random takes any node with room.
type random struct{}

func (random) pick(s *Situation, e *Explanation) int {
	n := withRoom(s.Candidates)
	if n == 0 {
		return -1
	}
	if e != nil {
		e.Why = fmt.Sprintf("drawn at random among %d candidates with room", n)
	}
	return nth(s.Candidates, scale(s.Random, n))
}
