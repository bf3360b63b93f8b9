package policy

import "fmt"

// direct takes the node that the request names, and no other one. Of the node's data-parallel ranks
// direct takes the least loaded one.
type direct struct{}

func (direct) pick(s *Situation, e *Explanation) int {
	if !s.Pinned {
		if e != nil {
			e.Why = "mode direct only takes the node that the request names, and it names none"
		}
		return -1
	}
	pick := least(s, anyDevice) // among the ranks of the node
	if e != nil && pick >= 0 {
		e.Why = fmt.Sprintf("the node that the request names, %s", s.Candidates[pick].load()) +
			s.decided(pick, anyDevice)
	}
	return pick
}
