package shared

import (
	"context"
	"time"
)

// reserveExact asks Redis. If an answer does not come, Redis may have counted the request: r keeps
// its id, so that it settles there too.
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
		again, sent := l.behind(bounded, c)
		if again != nil {
			reply = again
		} else if sent {
			r.id = id
		}
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

// behind runs a call after all settlements of this router so far. Without an answer in time reply
// is nil. sent says whether Redis may then have run the call.
func (l *Limiter) behind(ctx context.Context, c *call) (reply []int64, sent bool) {
	done := make(chan []int64, 1)
	a := &ask{call: &call{script: c.script, keys: c.keys, args: c.args,
		done: func(reply []int64, err error) {
			if err != nil {
				reply = nil
			}
			done <- reply
		}}}
	select {
	case l.asks <- a:
	default:
		l.counts.full.Add(1)
		return nil, false
	}
	select {
	case reply = <-done:
		return reply, true
	case <-ctx.Done():
		return nil, !a.state.CompareAndSwap(asked, gone)
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
