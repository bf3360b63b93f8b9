package leg

import (
	"slices"
	"time"
)

// A pick in mode predicted looks closely at some nodes of a large fleet only: at those that hold
// most of the prompt, at those with the least to do, and at the session's node.
const (
	sampleAbove = 48 // nodes from which on a pick looks at some only
	sampleMost  = 12 // nodes of each kind
)

// sample is a short list of places, the highest worth first.
type sample struct {
	n     int
	at    [sampleMost]int32
	worth [sampleMost]int64
}

// offer adds a place if its worth is among the highest.
func (s *sample) offer(at int32, worth int64) {
	if s.n == len(s.at) {
		if worth <= s.worth[s.n-1] {
			return
		}
		s.n--
	}
	i := s.n
	for ; i > 0 && s.worth[i-1] < worth; i-- {
		s.at[i], s.worth[i] = s.at[i-1], s.worth[i-1]
	}
	s.at[i], s.worth[i] = at, worth
	s.n++
}

// thin leaves a sample of a large fleet in l.picks.able. The others get the filter unsampled. thin
// begins at a random place, so equal nodes have equal chances. suspects is the number of suspects.
// The sample has none of a minority of suspects, as leaveOut leaves them out.
func (l *Leg) thin(suspects int, suspect func(at int32) bool, now time.Time) {
	p := &l.picks
	if p.sampled = len(p.able) > sampleAbove && !p.whole && !p.explains; !p.sampled {
		return
	}
	home, held := l.homeHash(now), l.prompt.Held()
	spares := suspects > 0 && 2*suspects <= len(p.able)
	var holders, idle sample
	look := func(places []int32) {
		for _, at := range places {
			r := l.pool.ranks[at]
			if p.out[at] = unsampled; spares && suspect(at) {
				continue
			}
			idle.offer(at, -(int64(r.InFlight())<<10 + r.Book.Waiting()))
			if held {
				if blocks := max(l.prompt.Coming(int(at)), l.prompt.Reach(int(at)).Disk); blocks > 0 {
					holders.offer(at, int64(blocks))
				}
			}
			if home != 0 && r.IDHash == home {
				p.out[at] = passes
			}
		}
	}
	begin := int(uint32(p.turn)) % len(p.able)
	look(p.able[begin:])
	look(p.able[:begin])
	for _, s := range [...]*sample{&holders, &idle} {
		for _, at := range s.at[:s.n] {
			p.out[at] = passes
		}
	}
	p.able = slices.DeleteFunc(p.able, func(at int32) bool { return p.out[at] != passes })
}
