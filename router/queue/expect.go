package queue

import (
	"math"
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
func (l *Line) ahead(c *Claim) (n float64) {
	own, weight := 0, l.q.weight(c.Tenant)
	for _, at := range l.lanes {
		for _, g := range at.bands[c.Band] {
			if g.tenant.name == c.Tenant {
				own += earlier(g.tickets, &Ticket{claim: *c, arrival: math.MaxUint64})
			}
		}
	}
	for _, at := range l.lanes {
		for band := c.Band; band < Bands; band++ {
			for _, g := range at.bands[band] {
				switch {
				case band > c.Band:
					n += float64(len(g.tickets))
				case g.tenant.name != c.Tenant:
					n += min(float64(len(g.tickets)), math.Ceil(float64(own)*g.tenant.weight/weight))
				}
			}
		}
	}
	return n + float64(own)
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
