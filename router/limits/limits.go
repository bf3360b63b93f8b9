// Package limits bounds what a key, a tenant and a model may take: requests and tokens per minute
// and per day, requests at a time, and tokens per month.
//
// A request reserves what it may use at most before it is sent, and settles once with what it has
// used. Reserving and settling take no lock, and do not allocate.
package limits

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/limits/shared"
)

// Account is what one subject has used. It outlives a change of its limits. The zero Account has
// used nothing.
type Account struct {
	counters [len(settings)]counter
	together atomic.Pointer[shared.Subject] // nil: no router has shared it
}

// Rescale gives the account other limits. What was used stays used: a word counts units by their
// share of the limit. A request that is counted at the same instant may count by either limit.
func (a *Account) Rescale(to *Limit, at time.Time) {
	if to == nil {
		return
	}
	now := instantOf(at, false)
	for i := range to.rules {
		is := &to.rules[i]
		c := &a.counters[is.setting]
		if was := c.rule.Swap(is); was != nil && was.limit != is.limit && is.window > 0 {
			c.rescale(is.unit/was.unit, is.window, now)
		}
	}
}

// Use is what a request uses.
type Use struct{ Requests, Input, Output int64 }

func (u Use) of(k Kind) int64 {
	switch k {
	case Requests:
		return u.Requests
	case Input:
		return u.Input
	case Output:
		return u.Output
	case InFlight:
		return 1
	}
	return u.Input + u.Output
}

// MostUse bounds the tokens of a Use, for input and output each. It is beyond all that a request
// can use, and below what sums could not hold.
const MostUse = 1 << 40

// Scope says whose limit it is.
type Scope uint8

// The scopes.
const (
	OfKey Scope = iota
	OfTenant
	OfTenantModel
	OfModel
	scopes
)

// String returns the scope as metrics name it.
func (s Scope) String() string { return [...]string{"key", "tenant", "tenant_model", "model"}[s] }

// Subject is one that limits bound.
type Subject struct {
	Of           Scope
	Limit        *Limit
	Account      *Account
	Tenant, Name string // by which routers know the account; Name is of the key or the model
}

// rule returns the i-th rule of the limit as the account now has it. A request may have found its
// subject before the limit has changed.
func (s *Subject) rule(i int) *rule {
	r := &s.Limit.rules[i]
	if now := s.Account.counters[r.setting].rule.Load(); now != nil {
		return now
	}
	return s.begin(r)
}

// begin makes r the rule by which its counter counts, unless another request has just done so.
func (s *Subject) begin(r *rule) *rule {
	c := &s.Account.counters[r.setting]
	c.rule.CompareAndSwap(nil, r)
	return c.rule.Load()
}

// Refusal says which limit has no room for a request.
type Refusal struct {
	Setting string // name of the limit in settings
	Of      Scope
	Kind    Kind
	Window  time.Duration // 0 of InFlight and Budget
	Limit   int64
	Used    int64 // what running requests have reserved included
	Asked   int64
	// Wait is the time until there is room, if running requests use what they have reserved. Of
	// InFlight it is a guess.
	Wait time.Duration
}

// Never says whether the request does not fit into the limit even when nothing else is used.
func (r *Refusal) Never() bool { return r.Asked > r.Limit }

// beats says whether r is the better answer to a request that x refuses too: the client should not
// come back before all limits have room.
func (r *Refusal) beats(x *Refusal) bool {
	if r.Never() != x.Never() {
		return r.Never()
	}
	return r.Wait > x.Wait
}

// Reservation is what one request has reserved with its subjects. The zero Reservation has none.
// One goroutine at a time uses a Reservation.
type Reservation struct {
	subjects [scopes]Subject
	n        int
	held     bool
	tokens   bool // some subject has a limit of tokens
	budgets  bool // some subject has a budget
	use      Use
	at       instant
	shared   *shared.Reservation // with the other routers; nil: none
}

// Add adds a subject, at most one of each scope. A subject without Limit is none.
func (r *Reservation) Add(s Subject) {
	if s.Limit == nil || r.n == len(r.subjects) {
		return
	}
	r.subjects[r.n] = s
	r.n++
	r.tokens, r.budgets = r.tokens || s.Limit.tokens, r.budgets || s.Limit.budget
}

// Limited says whether the request has a subject.
func (r *Reservation) Limited() bool { return r.n > 0 }

// CountsTokens says whether some subject has a limit of tokens.
func (r *Reservation) CountsTokens() bool { return r.tokens }

// Held says whether something is reserved.
func (r *Reservation) Held() bool { return r.held }

// Within returns u with no more tokens than each limit lets through when nothing else is used.
func (r *Reservation) Within(u Use) Use {
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		for j := range s.Limit.rules {
			switch rule := s.rule(j); rule.kind {
			case Input:
				u.Input = min(u.Input, rule.limit)
			case Output:
				u.Output = min(u.Output, rule.limit)
			case Tokens, Budget:
				u.Input = min(u.Input, rule.limit)
				u.Output = min(u.Output, rule.limit-u.Input)
			}
		}
	}
	return u
}

// Reserve reserves u with all subjects, or with none. The refusal is that of the limit that has no
// room for the longest time.
func (r *Reservation) Reserve(u Use, at time.Time) (no Refusal, ok bool) {
	r.use, r.at = u, instantOf(at, r.budgets)
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		for j := range s.Limit.rules {
			rule := s.rule(j)
			if over := s.take(rule, u.of(rule.kind), r.at); over > 0 {
				r.giveBack(i, j)
				return r.refusal(s, rule, over, at), false
			}
		}
	}
	r.held = r.n > 0
	return no, true
}

// take counts n units of a rule, or returns the time until there is room.
func (s *Subject) take(r *rule, n int64, at instant) (over int64) {
	if n == 0 {
		return 0
	}
	if n > r.limit {
		return never
	}
	return s.Account.counters[r.setting].take(r, n, at)
}

// lacks returns the time until n units of a rule have room; 0: they have.
func (s *Subject) lacks(r *rule, n int64, at instant) (over int64) {
	if n == 0 {
		return 0
	}
	if n > r.limit {
		return never
	}
	return s.Account.counters[r.setting].lacks(r, n, at)
}

// giveBack gives back what was taken of the first i subjects, and of the first j rules of the next.
func (r *Reservation) giveBack(i, j int) {
	for k := range r.subjects[:i+1] {
		s := &r.subjects[k]
		n := j
		if k < i {
			n = len(s.Limit.rules)
		}
		s.settle(n, r.use, Use{}, r.at, r.at)
	}
}

// settle settles the first n rules.
func (s *Subject) settle(n int, reserved, used Use, taken, at instant) {
	for i := range n {
		rule := s.rule(i)
		if was, is := reserved.of(rule.kind), used.of(rule.kind); was != 0 || is != 0 {
			s.Account.counters[rule.setting].settle(rule, was, is, taken, at)
		}
	}
}

// refusal describes the refusal of one rule, or that of another that refuses for longer.
func (r *Reservation) refusal(by *Subject, first *rule, over int64, at time.Time) Refusal {
	worst := r.describe(by, first, over, at)
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		for j := range s.Limit.rules {
			rule := s.rule(j)
			over := s.lacks(rule, r.use.of(rule.kind), r.at)
			if x := r.describe(s, rule, over, at); over > 0 && x.beats(&worst) {
				worst = x
			}
		}
	}
	return worst
}

func (r *Reservation) describe(s *Subject, rule *rule, over int64, at time.Time) Refusal {
	used, _ := s.Account.counters[rule.setting].used(rule, r.at)
	no := Refusal{
		Setting: settings[rule.setting].name, Of: s.Of, Kind: rule.kind, Window: time.Duration(rule.window),
		Limit: rule.limit, Used: used, Asked: r.use.of(rule.kind), Wait: time.Duration(over),
	}
	switch {
	case no.Never():
		no.Wait = 0
	case rule.kind == Budget:
		no.Wait = monthEnds(at)
	}
	return no
}

// Settle counts what the request has used in place of what it has reserved. Tokens below 0 count as
// 0, and those above MostUse as MostUse. Calls after the first do nothing.
func (r *Reservation) Settle(used Use, at time.Time) {
	if !r.held {
		return
	}
	r.held = false
	used.Input, used.Output = min(max(used.Input, 0), MostUse), min(max(used.Output, 0), MostUse)
	r.settleShared(used)
	now := instantOf(at, r.budgets)
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		s.settle(len(s.Limit.rules), r.use, used, r.at, now)
	}
}

// Left is what is left of a limit.
type Left struct {
	Limit, Remaining int64
	Reset            time.Duration // until nothing that was used counts any more
}

// Left returns what is left of the limits of a kind, of the one that has the least left. ok is
// false if there is none. The budget is not among them.
func (r *Reservation) Left(k Kind, at time.Time) (least Left, ok bool) {
	now := instantOf(at, r.budgets)
	for i := range r.subjects[:r.n] {
		s := &r.subjects[i]
		for j := range s.Limit.rules {
			rule := s.rule(j)
			if rule.kind != k {
				continue
			}
			l, together := s.leftTogether(rule)
			if !together {
				used, reset := s.Account.counters[rule.setting].used(rule, now)
				l = Left{rule.limit, max(rule.limit-used, 0), reset}
			}
			if !ok || l.Remaining < least.Remaining {
				least, ok = l, true
			}
		}
	}
	return least, ok
}
