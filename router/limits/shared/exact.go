package shared

import (
	"context"
	"time"
)

// reserveExact asks Redis. If Redis does not answer, it may have counted the request: r keeps its
// id, so that it settles there too.
func (l *Limiter) reserveExact(r *Reservation, at int64) (Refusal, Verdict) {
	if l.away.Load() {
		return Refusal{}, Unavailable
	}
	id := l.next()
	c := l.scripts.newReserve(r.mark(id), markLife)
	for i := range r.limits[:r.n] {
		c.reserve(&r.limits[i], r.limits[i].Units, 0, r.limits[i].Bucket.atOnce)
	}
	bounded, cancel := context.WithTimeout(context.Background(), l.o.Timeout)
	defer cancel()
	l.counts.trips.Add(1)
	reply, err := l.scripts.run(bounded, l.db, c)
	if err == nil && reply[0] == 0 && l.pending.Load() > 0 {
		// What this router has not yet given back may make room.
		reply, err = l.behind(bounded, c)
	}
	if err != nil {
		l.fail(err)
		r.id = id
		return Refusal{}, Unavailable
	}
	if reply[0] == 0 {
		return refusal(r.limits[:r.n], reply, now()), Refused
	}
	tell(r.limits[:r.n], reply, now())
	r.id, r.by = id, byRedis
	l.note(r, l.routers.Load(), at)
	for _, s := range r.subjects() {
		s.flying.Add(1)
		l.flying.Store(s, nil)
	}
	return Refusal{}, Admitted
}

// mark returns the key of the reservation's mark.
func (r *Reservation) mark(id string) string { return r.limits[0].Bucket.subject.mark + id }

// subjects returns the subjects of the reservation's limits.
func (r *Reservation) subjects() (all []*Subject) {
	for i := range r.limits[:r.n] {
		if s := r.limits[i].Bucket.subject; i == 0 || s != r.limits[i-1].Bucket.subject {
			all = append(all, s)
		}
	}
	return all
}

// behind runs a call after all settlements of this router so far.
func (l *Limiter) behind(ctx context.Context, c *call) ([]int64, error) {
	type outcome struct {
		reply []int64
		err   error
	}
	done := make(chan outcome, 1)
	a := &ask{call: &call{script: c.script, keys: c.keys, args: c.args,
		done: func(reply []int64, err error) { done <- outcome{reply, err} }}}
	select {
	case l.asks <- a:
	default:
		l.counts.full.Add(1)
		return nil, errFull
	}
	select {
	case is := <-done:
		return is.reply, is.err
	case <-ctx.Done():
		a.state.CompareAndSwap(asked, gone)
		return nil, ctx.Err()
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
