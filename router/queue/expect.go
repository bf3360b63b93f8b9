package queue

import (
	"math"
	"slices"
	"time"
)

// countMost bounds the requests of one tenant that Expect counts.
const countMost = 4096

// Expect returns how long a request with this claim would wait in the line from now: the requests
// that would get a node before it, at the pace of the last dispatches. Further requests are not
// expected. Without a pace yet, wait is 0 and known is false.
func (l *Line) Expect(c *Claim, now time.Time) (wait time.Duration, known bool) {
	l.q.mu.Lock()
	defer l.q.mu.Unlock()
	if l.every == 0 || l.waiting == 0 && now.Sub(l.paused) > oldPace {
		return 0, false
	}
	wait = time.Duration(float64(l.every) * min(l.ahead(c)+1, math.MaxInt32))
	if !l.last.IsZero() {
		wait -= now.Sub(l.last)
	}
	return max(wait, 0), true
}

// ahead returns how many requests would get a node before one with claim c. Tenants get turns by
// their weights, as if all requests cost the same.
func (l *Line) ahead(c *Claim) float64 {
	var groups []*group // of the tenant
	if of := l.tenants[c.Tenant]; of != nil {
		groups = of.groups
	}
	own := 0
	for _, g := range groups {
		if g.band == c.Band {
			own += earlier(g.tickets, &Ticket{claim: *c, arrival: math.MaxUint64})
		}
	}
	n, weight := own, l.q.weight(c.Tenant)
	turns := func(of float64) int { return int(min(math.Ceil(float64(own)*of/weight), math.MaxInt32)) }
	for band := c.Band + 1; band < Bands; band++ {
		n += l.depth[band]
	}
	for i := range l.sizes[c.Band] {
		s := &l.sizes[c.Band][i]
		n += s.upTo(turns(s.weight))
	}
	for _, g := range groups { // which sizes has counted too
		if g.band == c.Band {
			n -= min(len(g.tickets), turns(weight))
		}
	}
	return float64(n)
}

// sizes counts the groups of tenants of one weight, in one band of a line, by their numbers of
// requests.
type sizes struct {
	weight float64
	over   []int // at i: the groups with more than i requests; 0 at none
}

// resized notes that a group has n, 1 or -1, requests more.
func (l *Line) resized(g *group, n int) {
	band := &l.sizes[g.band]
	at := slices.IndexFunc(*band, func(s sizes) bool { return s.weight == g.tenant.weight })
	if at < 0 {
		at = len(*band)
		*band = append(*band, sizes{weight: g.tenant.weight})
	}
	s := &(*band)[at]
	i := min(len(g.tickets), len(g.tickets)-n)
	if i == len(s.over) {
		s.over = append(s.over, 0)
	}
	if s.over[i] += n; s.over[i] == 0 { // and so are all after it
		s.over = s.over[:i]
	}
}

// upTo returns how many requests the groups have, if each counts with no more than most of them.
func (s *sizes) upTo(most int) (n int) {
	for _, groups := range s.over[:min(most, len(s.over))] {
		n += groups
	}
	return n
}

// earlier returns how many tickets of h come before t, which is not among them, up to countMost.
func earlier(h heap[*Ticket], t *Ticket) int {
	if t.claim.Deadline.IsZero() { // it comes after all
		return min(len(h), countMost)
	}
	return countEarlier(h, t, 0, countMost)
}

// countEarlier is earlier for the subtree at a place of the heap. Its time goes with the count,
// because what comes after t has only later ones below it.
func countEarlier(h heap[*Ticket], t *Ticket, at, most int) (n int) {
	if at >= len(h) || most <= 0 || !h[at].before(t) {
		return 0
	}
	n = 1
	n += countEarlier(h, t, 2*at+1, most-n)
	n += countEarlier(h, t, 2*at+2, most-n)
	return n
}
