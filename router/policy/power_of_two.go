package policy

import "fmt"

// powerOfTwo takes the less loaded of two nodes, which are drawn at random. If they are equal, the
// session's wins, else the one drawn first.
type powerOfTwo struct{}

func (powerOfTwo) pick(s *Situation, e *Explanation) int {
	n := withRoom(s.Candidates)
	if n == 0 {
		return -1
	}
	first := scale(s.Random, n)
	pick, equal := nth(s.Candidates, first), false
	if n > 1 {
		k := scale(mix(s.Random), n-1)
		if k >= first {
			k++
		}
		second, l := nth(s.Candidates, k), occupancyOf(s.Candidates)
		a, b := l.of(&s.Candidates[pick]), l.of(&s.Candidates[second])
		if equal = a == b; b < a || equal && second == s.Home-1 {
			pick = second
		}
	}
	if e != nil {
		e.Why = fmt.Sprintf("the less loaded of two drawn among %d candidates, %s", n, s.Candidates[pick].load())
		if equal && pick == s.Home-1 {
			e.Why += sessionDecided
		}
	}
	return pick
}
