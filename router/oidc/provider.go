package oidc

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cognitora/dataplane/internal/await"
)

const (
	readEvery  = 5 * time.Minute  // while the provider answers
	readAgain  = 10 * time.Second // at the earliest, and after a failure
	readWithin = 5 * time.Second  // the discovery document and the keys together
	askWait    = 2 * time.Second  // longest that a request waits for the keys
	maxAnswer  = 1 << 20          // bytes
	maxHops    = 3                // redirects, all to the same host
)

// provider follows the keys of the provider. Run reads them every 5 minutes, and sooner if a
// request has a key that is not known, but not within 10 s of the last time. While the provider
// does not answer, the keys read last count on.
type provider struct {
	o       *Options
	allowed []jose.SignatureAlgorithm
	client  *http.Client
	keys    atomic.Pointer[keySet] // never nil
	read    atomic.Pointer[time.Time]
	problem atomic.Pointer[string]
	wake    chan struct{}

	mu    sync.Mutex
	began time.Time     // of the last reading
	next  chan struct{} // closed when the reading under way, or the next one, is over
	under bool          // a reading is under way, or asked for

	readings [2]atomic.Uint64 // that failed, and that did not
}

func (p *provider) init(o *Options, allowed []jose.SignatureAlgorithm) {
	p.o, p.allowed = o, allowed
	p.client = &http.Client{Transport: o.Transport, CheckRedirect: checkRedirect}
	p.keys.Store(&keySet{})
	p.wake, p.next, p.under = make(chan struct{}, 1), make(chan struct{}), true
}

// Run reads the provider's keys until ctx ends.
func (p *provider) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		p.begin()
		err := p.look(ctx)
		p.end()
		wait := readAgain
		if err == nil {
			wait = readEvery - rand.N(readEvery/10) // routers that started together ask one by one
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-p.wake:
		}
		timer.Stop()
	}
	return nil
}

// begin notes that a reading begins. A wish for one is fulfilled by it.
func (p *provider) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.began, p.under = time.Now(), true
	select {
	case <-p.wake:
	default:
	}
}

// end lets those go on who wait for the reading.
func (p *provider) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.under = false
	close(p.next)
	p.next = make(chan struct{})
}

// ask returns newer keys than these, if there are any. If the keys may be read again now, ask waits
// for that, at most askWait. certain says that the keys were read after ask was called, or while it
// was: a key that they do not have is none of the provider's.
func (p *provider) ask(than *keySet) (keys *keySet, certain bool) {
	p.mu.Lock()
	if now := p.keys.Load(); now != than {
		p.mu.Unlock()
		return now, false
	}
	if !p.under {
		if time.Since(p.began) < readAgain {
			p.mu.Unlock()
			return than, false
		}
		p.under = true
		await.Wake(p.wake)
	}
	next, before := p.next, p.readings[1].Load()
	p.mu.Unlock()
	timer := time.NewTimer(askWait)
	defer timer.Stop()
	select {
	case <-next:
		return p.keys.Load(), p.readings[1].Load() != before
	case <-timer.C:
		return p.keys.Load(), false
	}
}

// look reads the keys once.
func (p *provider) look(ctx context.Context) error {
	within, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	keys, err := p.fetch(within)
	if ctx.Err() != nil {
		return nil // the router stops
	}
	if err != nil {
		p.readings[0].Add(1)
		p.tell(err.Error())
		return err
	}
	if was := p.keys.Load(); !was.same(keys) {
		p.keys.Store(&keySet{keys, was.generation + 1})
		p.o.Log.Info("keys of the OIDC provider read", "issuer", p.o.Issuer, "keys", len(keys))
	}
	now := time.Now()
	p.read.Store(&now)
	p.readings[1].Add(1)
	p.tell("")
	return nil
}

// tell notes why the keys cannot be read, and logs each change.
func (p *provider) tell(problem string) {
	was := p.Problem()
	p.problem.Store(&problem)
	if problem != "" && problem != was {
		until := "those read last count on"
		if p.read.Load() == nil {
			until = "until they are, each token gets 503"
		}
		p.o.Log.Error("keys of the OIDC provider not read; "+until, "issuer", p.o.Issuer, "error", problem)
	} else if problem == "" && was != "" {
		p.o.Log.Info("the OIDC provider answers again", "issuer", p.o.Issuer)
	}
}

// fetch reads the discovery document and the keys that it names.
func (p *provider) fetch(ctx context.Context) (map[keyName]crypto.PublicKey, error) {
	at := strings.TrimSuffix(p.o.Issuer, "/") + "/.well-known/openid-configuration"
	page, err := p.get(ctx, at)
	if err != nil {
		return nil, err
	}
	var doc struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(page, &doc); err != nil {
		return nil, fmt.Errorf("%s is no discovery document: %w", at, err)
	}
	if doc.Issuer != p.o.Issuer {
		return nil, fmt.Errorf("%s is of the issuer %.200q; auth.oidc.issuer must be the same, to the last slash", at,
			doc.Issuer)
	}
	if err := CheckURL(doc.Keys); err != nil {
		return nil, fmt.Errorf("the jwks_uri of %s: %w", at, err)
	}
	if page, err = p.get(ctx, doc.Keys); err != nil {
		return nil, err
	}
	keys, err := parseKeys(page, p.allowed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doc.Keys, err)
	}
	return keys, nil
}

// get returns the body of an answer with status 200.
func (p *provider) get(ctx context.Context, at string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %d", at, resp.StatusCode)
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", at, err)
	}
	if len(page) > maxAnswer {
		return nil, fmt.Errorf("%s answers more than %d bytes", at, maxAnswer)
	}
	return page, nil
}

// checkRedirect follows redirects on one host only.
func checkRedirect(next *http.Request, via []*http.Request) error {
	first := via[0].URL
	if next.URL.Scheme != first.Scheme || next.URL.Host != first.Host {
		return errors.New("it redirects to another place")
	}
	if len(via) > maxHops {
		return errors.New("it redirects too often")
	}
	return nil
}

// CheckURL returns an error unless at can be trusted to be the provider's: https, or http on this
// host.
func CheckURL(at string) error {
	u, err := url.Parse(at)
	if err != nil || u.Host == "" || u.User != nil || u.Fragment != "" {
		return fmt.Errorf("%.200q is no URL of a host without a user's name", at)
	}
	ip := net.ParseIP(u.Hostname())
	if u.Scheme != "https" && !(u.Scheme == "http" && (u.Hostname() == "localhost" || ip != nil && ip.IsLoopback())) {
		return fmt.Errorf("%.200q is neither https nor http on this host", at)
	}
	return nil
}

// Known says whether the keys have been read once.
func (p *provider) Known() bool { return p.read.Load() != nil }

// Issuer returns the provider's issuer.
func (p *provider) Issuer() string { return p.o.Issuer }

// Problem says why the keys could not be read the last time; empty: they could, or were not read
// yet.
func (p *provider) Problem() string {
	if s := p.problem.Load(); s != nil {
		return *s
	}
	return ""
}

// Keys returns the number of keys, and their age; false before the first reading. A key that counts
// for several algorithms is several keys.
func (p *provider) Keys(now time.Time) (n int, age time.Duration, known bool) {
	read := p.read.Load()
	if read == nil {
		return 0, 0, false
	}
	return len(p.keys.Load().keys), now.Sub(*read), true
}

// Readings returns how often the keys could be read, and how often not.
func (p *provider) Readings() (done, failed uint64) {
	return p.readings[1].Load(), p.readings[0].Load()
}
