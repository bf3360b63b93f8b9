package shared

import "errors"

var (
	errAway  = errors.New("no answer from Redis")
	errShape = errors.New("a reply of Redis has another shape")
)

// report tells Redis what the router holds of a subject, and what was used of it. With all it tells
// what has not changed too. What Redis counts of the router is then right, whatever became of
// earlier calls.
//
// What was used goes with a serial, by which Redis counts it once. Without an answer it is told
// again with the same serial, before anything that was used later.
func (k *keeper) report(s *Subject, all bool) {
	of := &s.lease
	if of.state == told {
		s.gather()
	}
	with, serial := of.state == untold, int64(0)
	if with {
		serial = of.serial
	}
	c := k.l.scripts.newReport(s.mark+s.holder, serial)
	for i := range s.buckets {
		b, used := &s.buckets[i], int64(0)
		if with {
			used = of.used[i]
		}
		l := Limit{Bucket: b, Max: b.limit.Load()}
		if l.Max > 0 && (used != 0 || b.share.held != b.share.known || all && b.share.held > 0) {
			c.report(&l, b.share.held, used)
			b.share.known = b.share.held
		}
	}
	if !c.rows() {
		return
	}
	if with {
		of.state = underway
	}
	c.done = func(_ []int64, err error) {
		if err == nil {
			if with {
				of.state = told
			}
			return
		}
		if with {
			of.state = untold
		}
		for i := range s.buckets {
			s.buckets[i].share.known = -1
		}
	}
	k.calls = append(k.calls, c)
}

// gather takes what was used of the leases out of them, to be told with the next serial.
func (s *Subject) gather() {
	some := false
	for i := range s.buckets {
		b := &s.buckets[i]
		used := b.spent.Swap(0)
		if b.share.held -= used; b.share.held < 0 { // more was used than the lease had
			b.left.Add(-b.share.held)
			b.share.held = 0
		}
		s.lease.used[i] = used
		some = some || used != 0
	}
	if some {
		s.lease.serial++
		s.lease.state = untold
	}
}

// asking makes the call for a request that found its lease empty. asking returns nil if no call is
// needed. What is left of the lease counts towards the need.
func (k *keeper) asking(a *ask) *call {
	if a.call != nil && a.state.CompareAndSwap(asked, answered) {
		return a.call
	}
	if a.call != nil || a.state.Load() == gone {
		return nil
	}
	for i := range a.limits {
		if !k.keep(a.limits[i].Bucket.subject) {
			k.l.counts.full.Add(1)
			a.reply(answer{verdict: Unavailable})
			return nil
		}
	}
	c := k.l.scripts.newLease(a.limits[0].Bucket.subject.mark)
	got, enough := make([]int64, len(a.limits)), true
	for i := range a.limits {
		l := &a.limits[i]
		got[i] = l.Bucket.upTo(l.Units)
		enough = enough && got[i] == l.Units
		c.lease(l, l.Units-got[i], k.want(l.Bucket, l.Units))
	}
	if enough {
		k.admit(a)
		return nil
	}
	c.done = func(reply []int64, err error) { k.granted(a, got, reply, err) }
	return c
}

// admit admits a request whose units have been taken. If the request is gone they stay leased.
func (k *keeper) admit(a *ask) {
	if a.state.CompareAndSwap(asked, answered) {
		for i := range a.limits {
			a.limits[i].Bucket.take(a.limits[i].Units)
		}
		a.answer <- answer{verdict: Admitted}
		return
	}
	for i := range a.limits {
		a.limits[i].Bucket.left.Add(a.limits[i].Units)
	}
}

// granted takes what Redis has given for a request that waits, or tells it that there is no room.
func (k *keeper) granted(a *ask, got, reply []int64, err error) {
	at := now()
	if err == nil && reply[0] == 1 {
		for i := range a.limits {
			a.limits[i].Bucket.give(a.limits[i].Units-got[i], reply[2+2*i])
		}
		tell(a.limits, reply, at)
		k.admit(a)
		return
	}
	for i := range a.limits {
		b := a.limits[i].Bucket
		b.left.Add(got[i])
		if err != nil {
			b.share.known = -1
		}
	}
	if err != nil {
		a.reply(answer{verdict: Unavailable})
		return
	}
	no := refusal(a.limits, reply, at)
	a.limits[no.Limit].Bucket.noRoom(a.limits[no.Limit].Units, at, no.Wait)
	a.reply(answer{no, Refused})
}

// give adds what Redis has given to the lease. A request has taken its need of it.
func (b *Bucket) give(need, given int64) {
	b.share.held += need + given
	if b.share.known >= 0 {
		b.share.known += need + given
	}
	b.left.Add(given)
	if given == 0 {
		b.low.Store(0) // the limit is nearly used up: ask only when the lease is empty
	}
}

// keep looks at a subject each second from now on. keep returns false if there are too many.
func (k *keeper) keep(s *Subject) bool {
	if _, has := k.subjects[s]; !has {
		if len(k.subjects) >= maxLeased {
			return false
		}
		k.subjects[s] = struct{}{}
	}
	return true
}

// want returns how many units to ask for beyond the need, once in a flush.
func (k *keeper) want(b *Bucket, need int64) int64 {
	if b.share.round == k.round {
		return 0
	}
	b.share.round = k.round
	b.size(now())
	if b.share.at == 0 && b.window != 0 { // the first request
		b.share.at = now()
		if n := min(need*leaseFirst, b.limit.Load()/leaseParts); n >= need {
			return n
		}
	}
	return max(b.share.target-max(b.left.Load(), 0), 0)
}

// refill asks for units for the leases of a subject that run short.
func (k *keeper) refill(s *Subject) {
	if _, has := k.subjects[s]; !has {
		return
	}
	c := k.l.scripts.newLease(s.mark)
	var limits []Limit
	for i := range s.buckets {
		b := &s.buckets[i]
		l := Limit{Bucket: b, Max: b.limit.Load()}
		if l.Max == 0 || b.left.Load() > b.share.target*2/3 {
			continue
		}
		if want := k.want(b, 0); want > 0 {
			limits = append(limits, l)
			c.lease(&l, 0, want)
		}
	}
	if len(limits) == 0 {
		return
	}
	c.done = func(reply []int64, err error) {
		for i := range limits {
			if err != nil {
				limits[i].Bucket.share.known = -1
				continue
			}
			limits[i].Bucket.give(0, reply[2+2*i])
		}
		if err == nil {
			tell(limits, reply, now())
		}
	}
	k.calls = append(k.calls, c)
}

// tend gives back what a subject's leases have too much, and all of them once they are idle.
func (k *keeper) tend(s *Subject) {
	requests := s.requests.Load()
	if requests != s.lease.requests {
		s.lease.requests, s.lease.idle = requests, 0
	} else {
		s.lease.idle++
	}
	if s.lease.idle < leaseIdle {
		k.giveBack(s, func(b *Bucket) int64 {
			if n, target := b.left.Load(), b.share.target; n > 2*target+2 {
				return n - target
			}
			return 0
		})
		return
	}
	k.giveBack(s, func(b *Bucket) int64 { return b.left.Load() })
	if s.lease.state != told {
		return
	}
	for i := range s.buckets {
		if b := &s.buckets[i]; b.share.held != 0 || b.share.known != 0 || b.spent.Load() != 0 {
			return
		}
	}
	delete(k.subjects, s)
}

// giveBack gives back as much of each lease as excess says.
func (k *keeper) giveBack(s *Subject, excess func(*Bucket) int64) {
	some := false
	for i := range s.buckets {
		b := &s.buckets[i]
		n := b.upTo(excess(b))
		b.share.held -= n
		some = some || n > 0
	}
	if some || s.lease.idle == leaseIdle {
		k.report(s, false)
	}
}
