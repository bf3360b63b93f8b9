package limits

import (
	"sync"
	"time"

	"github.com/cognitora/dataplane/router/limits/shared"
)

// sharedRules are the settings as routers count them together.
var sharedRules = func() (all []shared.Rule) {
	for _, s := range settings {
		window := s.window
		if s.kind == Budget {
			window = shared.Month
		}
		all = append(all, shared.Rule{Name: s.name, Window: window, AtOnce: s.kind == Requests})
	}
	return all
}()

// A request has room for all limits of all its subjects.
var _ [shared.MaxLimits - int(scopes)*len(settings)]struct{}

// together returns the subject as routers count it together.
func (s *Subject) together(l *shared.Limiter) *shared.Subject {
	if is := s.Account.together.Load(); is != nil {
		return is
	}
	s.Account.together.CompareAndSwap(nil, l.Subject(s.Tenant, s.Of.String()+"/"+s.Name, sharedRules...))
	return s.Account.together.Load()
}

var sharedReservations = sync.Pool{New: func() any { return new(shared.Reservation) }}

// Share also reserves, together with the other routers of l, what r has reserved here. Without room
// there r gives back what it has here. ok is false then, and away says that nobody knows whether
// there is room. Share waits as long as l does.
func (r *Reservation) Share(l *shared.Limiter, at time.Time) (no Refusal, away, ok bool) {
	if !r.held {
		return no, false, true
	}
	var all [shared.MaxLimits]shared.Limit
	limits := all[:0]
	for i := range r.subjects[:r.n] {
		s := r.subjects[i].together(l)
		for j := range r.subjects[i].Limit.rules {
			rule := r.subjects[i].rule(j)
			units := r.use.of(rule.kind)
			limits = append(limits, shared.Limit{Bucket: s.Bucket(rule.setting), Max: rule.limit, Units: units})
		}
	}
	with := sharedReservations.Get().(*shared.Reservation)
	refusal, verdict := l.Reserve(with, limits)
	if verdict == shared.Admitted {
		r.shared = with
		return no, false, true
	}
	sharedReservations.Put(with)
	if verdict == shared.Refused {
		no = r.describeShared(&refusal, at)
	}
	r.Settle(Use{}, at)
	return no, verdict == shared.Unavailable, false
}

// describeShared describes the refusal of routers together.
func (r *Reservation) describeShared(is *shared.Refusal, at time.Time) Refusal {
	place := is.Limit
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		if place >= len(s.Limit.rules) {
			place -= len(s.Limit.rules)
			continue
		}
		over := is.Wait
		if over == 0 {
			over = time.Duration(unknown)
		}
		no := r.describe(s, s.rule(place), int64(over), at)
		no.Used = is.Used
		return no
	}
	return Refusal{}
}

// settleShared settles with the other routers.
func (r *Reservation) settleShared(used Use) {
	if r.shared == nil {
		return
	}
	var all [shared.MaxLimits]int64
	units := all[:0]
	for i := range r.subjects[:r.n] {
		for j := range r.subjects[i].Limit.rules {
			units = append(units, used.of(r.subjects[i].Limit.rules[j].kind))
		}
	}
	r.shared.Settle(units)
	sharedReservations.Put(r.shared)
	r.shared = nil
}

// leftTogether returns what is left of a rule with the other routers. ok is false if they do not
// count it.
func (s *Subject) leftTogether(rule *rule) (left Left, ok bool) {
	is := s.Account.together.Load()
	if is == nil {
		return left, false
	}
	l := shared.Limit{Bucket: is.Bucket(rule.setting), Max: rule.limit}
	of := l.Left()
	return Left{rule.limit, of.Remaining, of.Reset}, true
}
