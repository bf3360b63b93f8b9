// Package limits bounds what a key, a tenant and their use of one model may take: requests and
// tokens per minute and per day, and requests at a time.
//
// A request reserves what it may use at most before it is sent, and settles once with what it has
// used. Reserving and settling take no lock, and do not allocate.
package limits

import (
	"sync/atomic"
	"time"
)

// Rates are the limits of one subject. 0 is no limit.
type Rates struct {
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty"`
	RequestsPerDay    int64 `json:"requests_per_day,omitempty"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty"` // of prompts and answers
	TokensPerDay      int64 `json:"tokens_per_day,omitempty"`
	InputPerMinute    int64 `json:"input_tokens_per_minute,omitempty"`
	InputPerDay       int64 `json:"input_tokens_per_day,omitempty"`
	OutputPerMinute   int64 `json:"output_tokens_per_minute,omitempty"`
	OutputPerDay      int64 `json:"output_tokens_per_day,omitempty"`
	Concurrent        int64 `json:"concurrent,omitempty"` // requests at a time
}

// Kind is what a limit counts.
type Kind uint8

// The kinds.
const (
	Requests Kind = iota
	Tokens
	Input
	Output
	InFlight
)

// String returns the kind as errors name it.
func (k Kind) String() string {
	return [...]string{"requests", "tokens", "input tokens", "output tokens", "requests at a time"}[k]
}

// rule is a limit that a Rates may set.
type rule struct {
	kind   Kind
	window time.Duration
	of     func(*Rates) int64
}

const day = 24 * time.Hour

var rules = [...]rule{
	{Requests, time.Minute, func(r *Rates) int64 { return r.RequestsPerMinute }},
	{Requests, day, func(r *Rates) int64 { return r.RequestsPerDay }},
	{Tokens, time.Minute, func(r *Rates) int64 { return r.TokensPerMinute }},
	{Tokens, day, func(r *Rates) int64 { return r.TokensPerDay }},
	{Input, time.Minute, func(r *Rates) int64 { return r.InputPerMinute }},
	{Input, day, func(r *Rates) int64 { return r.InputPerDay }},
	{Output, time.Minute, func(r *Rates) int64 { return r.OutputPerMinute }},
	{Output, day, func(r *Rates) int64 { return r.OutputPerDay }},
}

// Account is what one subject has used. It outlives a change of its Rates.
type Account struct {
	buckets  [len(rules)]bucket
	inFlight atomic.Int64
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

// Refusal says which limit has no room for a request.
type Refusal struct {
	Kind   Kind
	Window time.Duration // 0 of InFlight
	Limit  int64
	Used   int64
	Asked  int64
	Wait   time.Duration // until there is room; 0: unknown, or never
}

// Never says whether the request does not fit into the limit even when nothing else is used.
func (r *Refusal) Never() bool { return r.Asked > r.Limit }

// now returns the time as buckets have it.
func now() int64 { return int64(time.Since(start)) }

var start = time.Now().Add(-10 * day)

// reserve counts a request, or returns the limit that has no room and counts nothing.
func (a *Account) reserve(rates *Rates, u Use, at int64) (no Refusal, ok bool) {
	if limit := rates.Concurrent; a.inFlight.Add(1) > limit && limit > 0 {
		return Refusal{Kind: InFlight, Limit: limit, Used: a.inFlight.Add(-1), Asked: 1}, false
	}
	for i := range rules {
		r := &rules[i]
		limit, n := r.of(rates), u.of(r.kind)
		if limit == 0 || n == 0 {
			continue
		}
		if wait, fits := a.buckets[i].take(n, limit, r.window, at); !fits {
			used, _ := a.buckets[i].used(limit, r.window, at)
			no = Refusal{r.kind, r.window, limit, used, n, wait}
			a.change(rates, u, -1, i, at)
			a.inFlight.Add(-1)
			return no, false
		}
	}
	return no, true
}

// settle counts what a request has used instead of what it has reserved, and its end.
func (a *Account) settle(rates *Rates, reserved, used Use, at int64) {
	more := Use{used.Requests - reserved.Requests, used.Input - reserved.Input, used.Output - reserved.Output}
	a.change(rates, more, 1, len(rules), at)
	a.inFlight.Add(-1)
}

// change adds sign times u to the buckets of the first n rules.
func (a *Account) change(rates *Rates, u Use, sign int64, n int, at int64) {
	for i := range rules[:n] {
		r := &rules[i]
		if limit, units := r.of(rates), u.of(r.kind); limit > 0 && units != 0 {
			a.buckets[i].add(sign*units, limit, r.window, at)
		}
	}
}

// InFlight returns the subject's requests in flight.
func (a *Account) InFlight() int64 { return a.inFlight.Load() }

// Left is what is left of a limit.
type Left struct {
	Limit, Remaining int64
	Reset            time.Duration // until nothing counts as used
}

// left returns what is left of the limit of a kind that has the least left, by its share.
func (a *Account) left(rates *Rates, k Kind, at int64) (least Left, ok bool) {
	for i := range rules {
		r := &rules[i]
		limit := r.of(rates)
		if r.kind != k || limit == 0 {
			continue
		}
		used, reset := a.buckets[i].used(limit, r.window, at)
		l := Left{limit, max(limit-used, 0), reset}
		if !ok || float64(l.Remaining)/float64(l.Limit) < float64(least.Remaining)/float64(least.Limit) {
			least, ok = l, true
		}
	}
	return least, ok
}
