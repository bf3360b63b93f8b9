package transport

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// twoFar returns a site whose owner has two cards, and whose reader's cards the tests use directly.
func twoFar(t *testing.T, o ServerOptions) *grantSite {
	return newGrantSite(t, grantSiteOptions{cards: 2, server: o, rails: func(near, _ *RailsOptions) {
		near.Wanted = []string{"near1"}
	}})
}

// asked returns how often the owner's cards were asked for pairs.
func (f *fabric) asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cards["far0"].asked + f.cards["far1"].asked
}

// TestConnectsAtOnce: while a session of a host is being made, no other session of that host is.
func TestConnectsAtOnce(t *testing.T) {
	l := twoFar(t, ServerOptions{})
	p, before := l.grantee(NoCards), l.f.asked()
	entered, let := make(chan struct{}, 2), make(chan struct{})
	l.f.set(func() {
		l.f.granted = func() {
			entered <- struct{}{}
			<-let
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() {
		if _, err := l.connection(ctx, p, wire.MaxRails); err != nil {
			t.Error(err)
		}
	})
	<-entered
	for range 20 {
		brief, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := l.connection(brief, p, wire.MaxRails)
		if cancel(); !errors.Is(err, wire.Busy) {
			t.Error(err)
			break
		}
	}
	if n := l.f.asked() - before; n != 1 {
		t.Errorf("%d pairs are made", n)
	}
	close(let)
	all.Wait()
	if _, err := l.connection(ctx, p, 1); err != nil || l.f.asked() != before+3 || l.server.GrantStats().Refused != 20 {
		t.Errorf("%v, %d pairs, %+v", err, l.f.asked()-before, l.server.GrantStats())
	}
}

// TestMostPairs: no pair is made beyond the bound, unless the peer's own oldest session gives way.
func TestMostPairs(t *testing.T) {
	l := twoFar(t, ServerOptions{})
	cache := l.grantee(NoCards)
	agent, err := newPool(t, PoolOptions{Identity: identity(t, pkiDir, pki.Agent)}).Peer(Target{Address: l.address,
		Lane: TLS})
	if err != nil {
		t.Fatal(err)
	}
	for range mostHostSessions {
		l.connect(agent, 2)
	}
	granter := l.server.granter
	counted := func(more int) (pairs int) {
		granter.mu.Lock()
		defer granter.mu.Unlock()
		granter.pairs += more
		return granter.pairs
	}
	others := mostPairs - 1 - counted(0)
	counted(others)
	made := l.f.asked()
	if _, err := l.connection(t.Context(), cache, 2); !errors.Is(err, wire.Busy) || l.f.asked() != made {
		t.Errorf("%v, %d pairs were made", err, l.f.asked()-made)
	}
	l.connect(agent, 2)
	eventually(t, "its oldest ends", func() bool { return counted(0) == mostPairs-1 })
	l.connect(cache, 1)
	if n := counted(0); n != mostPairs {
		t.Errorf("%d pairs", n)
	}
	counted(-others)
}

// TestCardsThatFail: each card is tried once, however many ends a peer names. The log names it
// once.
func TestCardsThatFail(t *testing.T) {
	var log lines
	l := twoFar(t, ServerOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	l.f.set(func() {
		l.f.cards["far0"].noPairs, l.f.cards["far1"].noPairs = errors.New("none is left"), errors.New("none is left")
	})
	before := l.f.asked()
	for try := range 3 {
		if _, err := l.connection(t.Context(), l.grantee(NoCards), wire.MaxRails); !errors.Is(err, wire.ByStream) ||
			l.f.asked() != before+2*(try+1) {
			t.Errorf("%v, %d pairs were asked for", err, l.f.asked()-before)
		}
	}
	if n := log.count("cannot be connected to"); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// TestConnectGivenUp: no further pair of a session is made once nobody waits for the session.
func TestConnectGivenUp(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{cards: 2}, func(t *testing.T, l *grantSite, p *Peer) {
		var probes atomic.Int64
		l.f.set(func() {
			l.f.granted = func() {
				probes.Add(1)
				time.Sleep(time.Second)
			}
		})
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := l.connection(ctx, p, 2); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second)
		if s := l.server.GrantStats(); probes.Load() != 1 || s.Sessions != 1 || s.Open != 1 {
			t.Errorf("%d pairs were made; %+v", probes.Load(), s)
		}
	})
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), what)
}
