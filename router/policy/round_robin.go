package policy

import "fmt"

// roundRobin takes each node with room in turn.
type roundRobin struct{}

func (roundRobin) pick(s *Situation, e *Explanation) int {
	n := withRoom(s.Candidates)
	if n == 0 {
		return -1
	}
	if e != nil {
		e.Why = fmt.Sprintf("its turn among %d candidates with room", n)
	}
	return nth(s.Candidates, int(s.Random%uint64(n)))
}
