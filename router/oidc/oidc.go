// Package oidc finds out who has a token: a signed JWT (RFC 7519, RFC 9068) of an OpenID Connect
// provider. It follows the provider's keys, and maps the token's groups to scopes, models and a
// tenant.
//
// A check that has to verify a signature takes 50 to 100 us of CPU. Its verdict is remembered under
// the token's SHA-256, for the same keys of the provider, until the token ends, or for 5 minutes.
// Refusals are remembered apart, for 10 s, so that a flood of them displaces no good token.
package oidc

import (
	"crypto/sha256"
	"log/slog"
	"net/http"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cognitora/dataplane/router/trust"
)

// Options say which tokens count, and what they give. Options do not change.
type Options struct {
	Issuer     string   // as the tokens' iss; its discovery document is below it
	Audience   []string // a token's aud must have one of them
	Algorithms []string // of Algorithms
	Clients    []string // ids of the clients that tokens may be issued to; none: any
	IDTokens   bool     // tokens that show that they are ID tokens count too
	Leeway     time.Duration

	GroupsClaim string
	TenantClaim string // empty: groups name the tenants
	Groups      []Group

	Transport http.RoundTripper // to the provider
	Log       *slog.Logger
}

// Group maps a group of the provider to rights. Of several groups of a token the first one of
// Options.Groups counts.
type Group struct {
	Name string
	trust.Grant
}

const (
	cachedFor   = 5 * time.Minute // a good token, at most
	refusedFor  = 10 * time.Second
	maxCached   = 32 << 10 // tokens
	maxRefused  = 4 << 10  // tokens
	slotWait    = time.Second
	slotsShares = 2 // one in so many CPUs checks signatures at most
)

// Verifier checks tokens. Its methods are safe for concurrent use.
type Verifier struct {
	o       Options
	allowed []jose.SignatureAlgorithm
	groups  map[string]int // place in o.Groups
	good    *cache
	bad     *cache
	slots   chan struct{} // held while a token is parsed and its signature checked
	provider

	checks [refusals]atomic.Uint64 // verdicts of tokens that were not remembered, by their refusal
	hits   atomic.Uint64           // tokens that were remembered as good
}

// New returns a verifier, which knows no key before Run.
func New(o Options) *Verifier {
	v := &Verifier{
		o: o, groups: map[string]int{}, good: newCache(maxCached), bad: newCache(maxRefused),
		slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/slotsShares)),
	}
	for _, name := range o.Algorithms {
		v.allowed = append(v.allowed, jose.SignatureAlgorithm(name))
	}
	for i := len(o.Groups) - 1; i >= 0; i-- {
		v.groups[o.Groups[i].Name] = i
	}
	v.provider.init(&v.o, v.allowed)
	return v
}

// Identify returns who has a token, or why it does not count. A token that is remembered costs no
// allocation. Another one takes its turn among the checks of signatures, at most 1 s; and if its
// key is not known, Identify waits for the provider, at most 2 s.
func (v *Verifier) Identify(text []byte, now time.Time) (*trust.Principal, Refusal) {
	if len(text) > maxToken {
		v.checks[TooLong].Add(1)
		return nil, TooLong
	}
	sum := digest(sha256.Sum256(text))
	keys := v.keys.Load()
	if known := v.good.get(&sum, keys.generation, now); known != nil {
		v.hits.Add(1)
		return known.who, None
	}
	who, why := v.first(text, &sum, keys, now)
	v.checks[why].Add(1)
	return who, why
}

// first checks a token that is not remembered as good.
func (v *Verifier) first(text []byte, sum *digest, keys *keySet, now time.Time) (*trust.Principal, Refusal) {
	who, why := v.turn(text, sum, keys, now)
	if why != UnknownKey || v.bad.get(sum, keys.generation, now) != nil {
		return who, why
	}
	newer, certain := v.ask(keys)
	if newer != keys {
		if who, why = v.turn(text, sum, newer, now); why != UnknownKey {
			return who, why
		}
	}
	if !certain {
		return nil, Pending
	}
	v.bad.put(&verdict{of: *sum, generation: newer.generation, until: now.Add(refusedFor), why: UnknownKey}, now)
	return nil, UnknownKey
}

// turn checks a token once a slot is free, and remembers the verdict, unless the key is unknown.
func (v *Verifier) turn(text []byte, sum *digest, keys *keySet, now time.Time) (*trust.Principal, Refusal) {
	if !v.enter() {
		return nil, Busy
	}
	defer func() { <-v.slots }()
	for _, c := range []*cache{v.good, v.bad} { // another request with the token may have had its turn
		if known := c.get(sum, keys.generation, now); known != nil {
			return known.who, known.why
		}
	}
	who, ends, why := v.check(text, keys, now)
	found := &verdict{of: *sum, generation: keys.generation, who: who, why: why}
	switch {
	case why == None:
		found.until = now.Add(cachedFor)
		if ends.Before(found.until) {
			found.until = ends
		}
		v.good.put(found, now)
	case why.lasts() && why != UnknownKey:
		found.until = now.Add(refusedFor)
		v.bad.put(found, now)
	}
	return who, why
}

// enter takes a slot, or returns false if none becomes free in time.
func (v *Verifier) enter() bool {
	select {
	case v.slots <- struct{}{}:
		return true
	default:
	}
	timer := time.NewTimer(slotWait)
	defer timer.Stop()
	select {
	case v.slots <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// check checks a token by these keys, the cheap parts first. ends is when it stops to count.
func (v *Verifier) check(text []byte, keys *keySet, now time.Time) (who *trust.Principal, ends time.Time, why Refusal) {
	t, why := parse(text, v.allowed)
	if why != None {
		return nil, ends, why
	}
	if ends, why = v.o.refuse(&t, now); why != None {
		return nil, ends, why
	}
	key := keys.keys[t.key]
	if key == nil {
		return nil, ends, UnknownKey
	}
	if _, err := t.jws.Verify(key); err != nil {
		return nil, ends, Signature
	}
	who, why = v.grant(&t)
	return who, ends, why
}

// Hits returns how many tokens were remembered as good.
func (v *Verifier) Hits() uint64 { return v.hits.Load() }

// Checks calls emit with each verdict and how many tokens that were not remembered as good got it.
func (v *Verifier) Checks(emit func(verdict string, count uint64)) {
	for why := range refusals {
		emit(why.String(), v.checks[why].Load())
	}
}
