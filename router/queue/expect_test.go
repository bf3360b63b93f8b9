package queue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// aheadByGroups is Line.ahead by a look at each group.
func (l *Line) aheadByGroups(c *Claim) (n float64) {
	own, weight := 0, l.q.weight(c.Tenant)
	each := func(band int, of func(*group)) {
		for _, at := range l.lanes {
			for _, g := range at.bands[band] {
				of(g)
			}
		}
	}
	each(c.Band, func(g *group) {
		if g.tenant.name == c.Tenant {
			own += earlier(g.tickets, &Ticket{claim: *c, arrival: math.MaxUint64})
		}
	})
	for band := c.Band + 1; band < Bands; band++ {
		each(band, func(g *group) { n += float64(len(g.tickets)) })
	}
	each(c.Band, func(g *group) {
		if g.tenant.name != c.Tenant {
			n += min(float64(len(g.tickets)), math.Ceil(float64(own)*g.tenant.weight/weight))
		}
	})
	return n + float64(own)
}

// TestAhead checks the counts by which Expect goes against the groups themselves, while requests
// join, leave, get nodes and drive others out of a full queue.
func TestAhead(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	weights := map[string]float64{"t1": 2, "t2": .1, "t3": 2}
	q, at := New(Options{MaxRequests: 60, MaxBytes: 1000, Weights: weights}), &node{}
	l, now := q.Line("m"), time.Now()
	claim := func() Claim {
		c := Claim{Tenant: fmt.Sprint("t", random.IntN(6)), Band: random.IntN(3), Bytes: 1}
		c.Lane = uint64(random.IntN(3))
		if random.IntN(2) == 0 {
			c.Deadline = now.Add(time.Duration(random.IntN(100)) * time.Minute)
		}
		return c
	}
	var all []*asked
	for step := range 5000 {
		switch random.IntN(4) {
		case 0:
			at.free = random.IntN(3)
			q.serve()
		case 1:
			if len(all) > 0 {
				a := all[random.IntN(len(all))]
				a.Leave()
				a.Settle(5)
			}
		default:
			c := claim()
			a := &asked{at: at, tokens: float64(random.IntN(100))}
			if c.Waiter = a; l.Join(&a.Ticket, c) == nil {
				all = append(all, a)
			}
		}
		c := claim()
		if got, want := l.ahead(&c), l.aheadByGroups(&c); got != want {
			t.Fatalf("seed %d, step %d: %v requests are ahead of %+v, not %v", seed, step, got, c, want)
		}
	}
	for _, a := range all {
		a.Leave()
		a.Settle(5)
	}
	for _, band := range l.sizes {
		for _, s := range band {
			if len(s.over) > 0 {
				t.Errorf("%+v is left of an empty line", s)
			}
		}
	}
	q.empty(t)
}
