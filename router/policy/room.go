package policy

import "math/bits"

func withRoom(cands []Candidate) int {
	n := 0
	for i := range cands {
		if cands[i].Room() {
			n++
		}
	}
	return n
}

// nth returns the index of the k-th candidate with room, counted from 0.
func nth(cands []Candidate, k int) int {
	for i := range cands {
		if !cands[i].Room() {
			continue
		}
		if k == 0 {
			return i
		}
		k--
	}
	return -1
}

// scale maps 64 random bits evenly onto 0..n-1.
func scale(r uint64, n int) int {
	hi, _ := bits.Mul64(r, uint64(n))
	return int(hi)
}

// mix spreads every input bit over the whole word (the splitmix64 finaliser).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
