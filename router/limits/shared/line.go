package shared

import (
	"context"
	"slices"
	"time"
)

// Bounds of requests that ask Redis together.
const (
	maxTogether = 32               // requests of one call
	maxUnderway = 4                // calls before requests wait for others
	joinTime    = time.Millisecond // most that a request waits for others
)

// line has requests for the same limits. A request asks at once, unless maxUnderway calls are
// underway: those that come then gather for the next call.
type line struct {
	limits   []Limit
	underway int
	waiting  []*request // fewer than maxTogether
}

// request is one that asks Redis in exact mode.
type request struct {
	id     string
	limits []Limit
	turn   chan []*request // those to ask for; nil: another request has asked for it
	reply  []int64         // as reserve.lua returns it for a single request
	err    error
}

// ask asks Redis for x, and for others whose turn it is.
func (l *Limiter) ask(x *request) {
	s := x.limits[0].Bucket.subject
	of, all := s.join(x)
	if all == nil {
		timer := time.NewTimer(joinTime)
		defer timer.Stop()
		select {
		case all = <-x.turn:
		case <-timer.C:
			if all = s.leave(of, x); all == nil {
				all = <-x.turn
			}
		}
	}
	if len(all) == 0 {
		return
	}
	defer func() { // even if a bug panics
		for _, y := range all {
			if y != x {
				y.turn <- nil
			}
		}
		s.done(of)
	}()
	l.askFor(all)
}

// askFor asks Redis for requests in one call. Each gets its part of the reply, or an error.
func (l *Limiter) askFor(all []*request) {
	for _, x := range all {
		x.err = errAway
	}
	if l.away.Load() { // since they began to wait
		for _, x := range all {
			x.id = ""
		}
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), l.o.Timeout)
	defer cancel()
	l.counts.trips.Add(1)
	reply, err := l.scripts.run(ctx, l.db, l.scripts.newRequests(all))
	if err == nil {
		err = divide(reply, all)
	}
	if err != nil {
		l.fail(err)
	}
	for _, x := range all {
		x.err = err
	}
}

// divide gives each request its part of reserve.lua's reply.
func divide(reply []int64, all []*request) error {
	for _, x := range all {
		n := 1
		if len(reply) > 0 && reply[0] == 0 {
			n = 4
		}
		if len(reply) < n {
			return errShape
		}
		x.reply, reply = reply[:n], reply[n:]
	}
	if len(reply) != 2*len(all[0].limits) {
		return errShape
	}
	for _, x := range all {
		if x.reply[0] != 0 {
			x.reply = append([]int64{1}, reply...)
		}
	}
	return nil
}

// join adds a request to its line. If all is not nil the request asks for all of them, itself
// among them. Otherwise it waits for its turn.
func (s *Subject) join(x *request) (of *line, all []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.lines, func(of *line) bool { return like(of.limits, x.limits) })
	if at < 0 {
		at = len(s.lines)
		s.lines = append(s.lines, &line{limits: x.limits})
	}
	of = s.lines[at]
	of.waiting = append(of.waiting, x)
	if of.underway < maxUnderway || len(of.waiting) == maxTogether {
		all = of.take()
	}
	return of, all
}

// leave ends x's wait. x then asks for all that wait; nil: others already ask for x.
func (s *Subject) leave(of *line, x *request) []*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(of.waiting, x) {
		return nil
	}
	return of.take()
}

// done ends a call. The first of those that wait asks next.
func (s *Subject) done(of *line) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of.underway--
	if len(of.waiting) > 0 {
		all := of.take()
		all[0].turn <- all
	} else if of.underway == 0 {
		s.lines = slices.DeleteFunc(s.lines, func(x *line) bool { return x == of })
	}
}

// take begins a call for all that wait.
func (of *line) take() []*request {
	all := of.waiting
	of.waiting = nil
	of.underway++
	return all
}
