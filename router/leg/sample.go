package leg

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// A pick in mode predicted looks closely at some nodes of a large fleet only: at those that hold
// most of the prompt, at those with the least to do, and at the session's node.
const (
	sampleAbove = 48 // a pick looks at every node of a fleet up to this size
	sampleMost  = 12 // holders in a sample, and as many nodes with the least to do
	// requestTokens is what a request at a node counts in tokens of waiting prefill. At the start
	// values of the rates, a running request adds as much to the cost of a prompt of 10,000 tokens
	// as 1,000 waiting tokens do. A shorter prompt stalls it for less time, and loses less if it
	// meets it.
	requestTokens = 1024
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
	if p.scope >= scopeWhole || len(p.able) <= sampleAbove || l.d.o.Unsampled {
		return
	}
	p.scope = scopeSample
	home, held := l.homeHash(now), l.prompt.Held()
	spares := suspects > 0 && 2*suspects <= len(p.able)
	var holders, idle sample
	look := func(places []int32) {
		for _, at := range places {
			r := l.pool.ranks[at]
			if p.out[at] = unsampled; spares && suspect(at) {
				continue
			}
			requests, waiting := toDo(r)
			idle.offer(at, -(requests*requestTokens + waiting))
			if held {
				if blocks := max(l.prompt.Coming(int(at)), l.reach(int(at)).Disk); blocks > 0 {
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

// toDo returns the requests at a rank and their waiting prefill, of this router and of others.
func toDo(r *fleet.Rank) (requests, waiting int64) {
	others, queued := r.Others()
	requests, waiting = int64(r.InFlight())+others, r.Book.WaitingTokens()
	if queued > 0 {
		waiting += queued * r.Book.Mean()
	}
	return requests, waiting
}
