package limits

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Rates are the limits of one subject, as settings write them. 0 is no limit.
type Rates struct {
	RequestsPerMinute int64 `json:"requests_per_minute,omitempty" toml:"requests_per_minute" help:"requests per minute; 0, as for all limits of the table: no limit"`
	RequestsPerDay    int64 `json:"requests_per_day,omitempty" toml:"requests_per_day" help:"requests per 24 hours"`
	TokensPerMinute   int64 `json:"tokens_per_minute,omitempty" toml:"tokens_per_minute" help:"tokens per minute, of prompts and answers together"`
	TokensPerDay      int64 `json:"tokens_per_day,omitempty" toml:"tokens_per_day" help:"tokens per 24 hours, of prompts and answers together"`
	InputPerMinute    int64 `json:"input_tokens_per_minute,omitempty" toml:"input_tokens_per_minute" help:"tokens of prompts per minute"`
	InputPerDay       int64 `json:"input_tokens_per_day,omitempty" toml:"input_tokens_per_day" help:"tokens of prompts per 24 hours"`
	OutputPerMinute   int64 `json:"output_tokens_per_minute,omitempty" toml:"output_tokens_per_minute" help:"tokens of answers per minute"`
	OutputPerDay      int64 `json:"output_tokens_per_day,omitempty" toml:"output_tokens_per_day" help:"tokens of answers per 24 hours"`
	Concurrent        int64 `json:"concurrent,omitempty" toml:"concurrent" help:"requests at a time"`
	Budget            int64 `json:"budget,omitempty" toml:"budget" help:"tokens in a calendar month (UTC), of prompts and answers together; a request beyond gets 429 insufficient_quota, which SDKs do not retry"`
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
	Budget
)

// String returns the kind as errors name it.
func (k Kind) String() string {
	return [...]string{"requests", "tokens", "input tokens", "output tokens", "concurrent requests", "tokens"}[k]
}

const day = 24 * time.Hour

// settings are the limits that Rates can set, in the order of an Account's counters.
var settings = [...]struct {
	name   string
	kind   Kind
	window time.Duration // 0 of InFlight and Budget
	of     func(*Rates) *int64
}{
	{"requests_per_minute", Requests, time.Minute, func(r *Rates) *int64 { return &r.RequestsPerMinute }},
	{"requests_per_day", Requests, day, func(r *Rates) *int64 { return &r.RequestsPerDay }},
	{"tokens_per_minute", Tokens, time.Minute, func(r *Rates) *int64 { return &r.TokensPerMinute }},
	{"tokens_per_day", Tokens, day, func(r *Rates) *int64 { return &r.TokensPerDay }},
	{"input_tokens_per_minute", Input, time.Minute, func(r *Rates) *int64 { return &r.InputPerMinute }},
	{"input_tokens_per_day", Input, day, func(r *Rates) *int64 { return &r.InputPerDay }},
	{"output_tokens_per_minute", Output, time.Minute, func(r *Rates) *int64 { return &r.OutputPerMinute }},
	{"output_tokens_per_day", Output, day, func(r *Rates) *int64 { return &r.OutputPerDay }},
	{"concurrent", InFlight, 0, func(r *Rates) *int64 { return &r.Concurrent }},
	{"budget", Budget, 0, func(r *Rates) *int64 { return &r.Budget }},
}

// Names returns the names of all limits.
func Names() (names []string) {
	for _, s := range settings {
		names = append(names, s.name)
	}
	return names
}

// most is the highest limit. Higher ones could not be counted.
const most = 1_000_000_000_000

// Check returns all problems of r, each with the name of its limit.
func (r *Rates) Check() error {
	var errs []error
	for _, s := range settings {
		if v := *s.of(r); v < 0 || v > most {
			errs = append(errs, fmt.Errorf("%s: %d is not in 1..%d; leave it out for no limit", s.name, v, int64(most)))
		}
	}
	return errors.Join(errs...)
}

// Parse returns the limits of texts such as tokens_per_minute=30000.
func Parse(texts []string) (r Rates, err error) {
texts:
	for _, text := range texts {
		name, value, _ := strings.Cut(text, "=")
		for _, s := range settings {
			if s.name != name {
				continue
			}
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 1 || n > most {
				return r, fmt.Errorf("%.60q: the value is not a whole number in 1..%d", text, int64(most))
			}
			if *s.of(&r) != 0 {
				return r, fmt.Errorf("%s is given twice", name)
			}
			*s.of(&r) = n
			continue texts
		}
		return r, fmt.Errorf("%.60q is no limit such as tokens_per_minute=30000; the limits are %s", text,
			strings.Join(Names(), ", "))
	}
	return r, nil
}

// Texts returns the limits of r as Parse takes them.
func (r Rates) Texts() (texts []string) {
	for _, s := range settings {
		if v := *s.of(&r); v != 0 {
			texts = append(texts, s.name+"="+strconv.FormatInt(v, 10))
		}
	}
	return texts
}

// Limit is Rates in the form that requests are held to. A Limit does not change.
type Limit struct {
	rules  []rule // those with a limit
	tokens bool   // some rule counts tokens
	budget bool   // some rule is a budget
}

// rule is one limit.
type rule struct {
	setting int // index of settings, and of the Account's counters
	kind    Kind
	limit   int64
	window  int64   // ns
	unit    float64 // ns of the window for each unit
	// room is the window, and the ns by which the costs of single requests are rounded up. It has
	// room for no further request.
	room int64
}

// NewLimit returns the Limit of rates, or nil if they limit nothing.
func NewLimit(rates Rates) *Limit {
	l := &Limit{}
	for i, s := range settings {
		n := *s.of(&rates)
		if n <= 0 {
			continue
		}
		unit := float64(s.window) / float64(n)
		l.rules = append(l.rules, rule{i, s.kind, n, int64(s.window), unit, int64(s.window) + min(n, int64(unit/2))})
		l.tokens = l.tokens || s.kind != Requests && s.kind != InFlight
		l.budget = l.budget || s.kind == Budget
	}
	if len(l.rules) == 0 {
		return nil
	}
	return l
}
