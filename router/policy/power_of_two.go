package policy

import "fmt"

// powerOfTwo takes the less loaded of two nodes, which are drawn at random.
type powerOfTwo struct{}

func (powerOfTwo) pick(s *Situation, e *Explanation) int {
	n := withRoom(s.Candidates)
	if n == 0 {
		return -1
	}
	first := scale(s.Random, n)
	pick := nth(s.Candidates, first)
	if n > 1 {
		k := scale(mix(s.Random), n-1)
		if k >= first {
			k++
		}
		second, l := nth(s.Candidates, k), occupancyOf(s.Candidates)
		if l.of(&s.Candidates[second]) < l.of(&s.Candidates[pick]) {
			pick = second
		}
	}
	if e != nil {
		e.Why = fmt.Sprintf("the less loaded of two drawn among %d candidates, %s", n, s.Candidates[pick].load())
	}
	return pick
}
