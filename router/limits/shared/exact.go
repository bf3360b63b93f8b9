package shared

import (
	"slices"
	"time"
)

// reserveExact asks Redis. If an answer does not come, Redis may have counted the request: r keeps
// its id, so that it settles there too.
func (l *Limiter) reserveExact(r *Reservation, at int64) (Refusal, Verdict) {
	if l.away.Load() {
		return Refusal{}, Unavailable
	}
	x := &request{id: l.next(), limits: slices.Clone(r.limits[:r.n]), turn: make(chan []*request, 1)}
	l.ask(x)
	if x.err != nil {
		r.id = x.id
		return Refusal{}, Unavailable
	}
	if x.reply[0] == 0 && l.pending.Load() > 0 && !l.behind(x, at) {
		r.id = x.id
	}
	if x.reply[0] == 0 {
		return refusal(x.limits, x.reply, now()), Refused
	}
	tell(x.limits, x.reply, now())
	r.id, r.by = x.id, byRedis
	l.add(r, l.routers.Load(), at)
	for _, s := range r.subjects() {
		s.flying.Add(1)
		l.flying.Store(s, nil)
	}
	return Refusal{}, Admitted
}

// markOf returns the key of a reservation's mark.
func markOf(limits []Limit, id string) string { return limits[0].Bucket.subject.mark + id }

// subjects returns the subjects of the reservation's limits.
func (r *Reservation) subjects() (all []*Subject) {
	for i := range r.limits[:r.n] {
		if s := r.limits[i].Bucket.subject; i == 0 || s != r.limits[i-1].Bucket.subject {
			all = append(all, s)
		}
	}
	return all
}

// behind asks for x again, after all settlements of this router so far: what the router has not yet
// given back may make room. known is false if Redis may have counted x, and has not answered in
// time.
func (l *Limiter) behind(x *request, at int64) (known bool) {
	done := make(chan []int64, 1)
	c := l.scripts.newRequests([]*request{x})
	c.done = func(reply []int64, err error) {
		y := request{limits: x.limits}
		if err != nil || divide(reply, []*request{&y}) != nil {
			y.reply = nil
		}
		done <- y.reply
	}
	a := &ask{call: c}
	select {
	case l.asks <- a:
	default:
		l.counts.full.Add(1)
		return true
	}
	timer := time.NewTimer(l.o.Timeout - time.Duration(now()-at))
	defer timer.Stop()
	select {
	case reply := <-done:
		if reply != nil {
			x.reply = reply
		}
		return reply != nil
	case <-timer.C:
		return a.state.CompareAndSwap(asked, gone)
	}
}

// tell records what counts in Redis. reply is that of a granted reservation.
func tell(limits []Limit, reply []int64, at int64) {
	for i := range limits {
		limits[i].Bucket.tell(reply[1+2*i], at)
	}
}

// tell records what counts in Redis: us until nothing does, or units.
func (b *Bucket) tell(counts, at int64) {
	if b.timed() {
		counts = at + counts*int64(time.Microsecond)
	}
	b.told.Store(counts)
}

// refusal reads the reply of a refused reservation.
func refusal(limits []Limit, reply []int64, at int64) Refusal {
	no := Refusal{Limit: int(reply[1]), Used: reply[2]}
	l := &limits[no.Limit]
	l.Bucket.tell(reply[2], at)
	if l.Bucket.timed() {
		no.Used = l.units(time.Duration(reply[2]) * time.Microsecond)
		no.Wait = time.Duration(reply[3]) * time.Microsecond
	}
	return no
}
