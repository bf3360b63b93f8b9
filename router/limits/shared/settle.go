package shared

import (
	"errors"
	"slices"
)

// settlement is what keeper has to tell Redis of a reservation in exact mode.
type settlement struct {
	mark   string
	limits []Limit
	held   []int64 // units of each limit that are held no more
	used   []int64
	tries  int // that have failed
}

// maxTries is how often keeper tells Redis of a settlement of which it does not know whether Redis
// has it.
const maxTries = 3

// settle tells keeper what a reservation in Redis has used; nil: nothing. If keeper is too far
// behind, what is reserved stays held until the router ends.
func (l *Limiter) settle(r *Reservation, used []int64) {
	x := &settlement{mark: markOf(r.limits[:r.n], r.id), limits: slices.Clone(r.limits[:r.n]), held: make([]int64, r.n),
		used: make([]int64, r.n)}
	for i := range x.limits {
		limit := &x.limits[i]
		x.held[i], x.used[i] = limit.Units, limit.used(used, i)
		if limit.Bucket.atOnce {
			x.held[i], x.used[i] = 0, x.used[i]-limit.Units
		}
	}
	if r.by == byRedis {
		for _, s := range r.subjects() {
			s.flying.Add(-1)
		}
	}
	r.id = ""
	l.pending.Add(1)
	select {
	case l.settles <- x:
	default:
		l.drop()
	}
}

func (l *Limiter) drop() {
	l.pending.Add(-1)
	l.counts.dropped.Add(1)
}

// settling returns the calls of settlements. Those of the same limits are one call.
func (k *keeper) settling(all []*settlement) (calls []*call) {
	var groups [][]*settlement
next:
	for _, x := range all {
		for i := range groups {
			if like(x.limits, groups[i][0].limits) {
				groups[i] = append(groups[i], x)
				continue next
			}
		}
		groups = append(groups, []*settlement{x})
	}
	for _, group := range groups {
		c := k.l.scripts.newSettle(group)
		c.done = func(_ []int64, err error) {
			for _, x := range group {
				k.settled(x, err)
			}
		}
		calls = append(calls, c)
	}
	return calls
}

// like says whether a and b are the same limits.
func like(a, b []Limit) bool {
	return slices.EqualFunc(a, b, func(a, b Limit) bool { return a.Bucket == b.Bucket && a.Max == b.Max })
}

// settled notes what became of a settlement. If that is unknown, keeper tries again: settling twice
// changes nothing.
func (k *keeper) settled(x *settlement, err error) {
	if err == nil {
		k.l.pending.Add(-1)
		return
	}
	if !errors.Is(err, errAway) {
		x.tries++
	}
	if len(k.settles) >= maxSettles || x.tries >= maxTries {
		k.l.drop()
		return
	}
	k.settles = append(k.settles, x)
}
