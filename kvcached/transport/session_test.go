package transport

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// TestCardWithoutPairs: a card that makes no pairs is reported and left out. Other cards are used.
func TestCardWithoutPairs(t *testing.T) {
	none := errors.New("no queue pair is left")
	for _, c := range []struct {
		cards int
		bad   string
	}{{1, "near0"}, {2, "near0"}, {2, "near1"}} {
		inVirtualTime(t, grantSiteOptions{cards: c.cards}, func(t *testing.T, l *grantSite, p *Peer) {
			want := l.offer("b", 3<<20)
			l.f.set(func() { l.f.cards[c.bad].noPairs = none })
			p.grantee.fail(nil, "test", rdma.ErrBroken)
			time.Sleep(time.Second)
			p.grantee.session()
			if time.Sleep(time.Second); c.cards > 1 {
				l.awaitReady(p)
			}
			got, _, err := l.read(t.Context(), p, "b")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "read", got, want)
			s := p.status()
			if !strings.Contains(s.Error, none.Error()) || s.RDMA != (c.cards > 1) || len(s.Cards) != c.cards-1 {
				t.Errorf("%s of %d: %+v", c.bad, c.cards, s)
			}
			l.f.set(func() { l.f.cards[c.bad].noPairs = nil })
			time.Sleep(2 * lastRebuild)
			l.awaitReady(p)
		})
	}
}

// TestCloseWhileItBreaks: a closed grantee has no pair, whatever happened meanwhile.
func TestCloseWhileItBreaks(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	for range 10 {
		p := l.grantee(Trusted)
		l.ready(p)
		s := p.grantee.session()
		var both sync.WaitGroup
		both.Go(func() { p.grantee.fail(s, "test", rdma.ErrBroken) })
		both.Go(func() { p.close(); l.pool.Forget(p.target) })
		both.Wait()
		l.f.mu.Lock()
		for pair := range l.f.cards["near0"].dev.pairs {
			t.Error("a pair is left: ", pair.qpn)
		}
		l.f.mu.Unlock()
	}
}

// TestReleaseWhileClosing: each card is closed once. A released card is closed when Close returns.
func TestReleaseWhileClosing(t *testing.T) {
	f := newFabric()
	c := f.plug("near0", "10.0.0.1")
	for range 200 {
		r := newRails(t, RailsOptions{Wanted: []string{AnyCard}, Present: f.present("near0"), Open: f.open,
			Memory: memory(t, 4096), Logger: quiet()})
		var both sync.WaitGroup
		both.Go(func() {
			if err := r.Release(t.Context(), "near0"); err != nil && !errors.Is(err, ErrNoCard) {
				t.Error(err)
			}
		})
		both.Go(func() {
			if err := r.Close(); err != nil || f.opened(c) {
				t.Error("it is open when all are closed:", err)
			}
		})
		both.Wait()
	}
}

// TestBetterSession: a read that runs when a card comes back is finished.
func TestBetterSession(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{cards: 2}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 100_000)
		l.f.unplug("near1")
		time.Sleep(time.Second)
		l.awaitCards(p, 1)
		begun := make(chan struct{})
		l.f.set(func() {
			l.f.reading = func(r rdma.Read) {
				if len(r.Into) > probeSize {
					close(begun)
					time.Sleep(4 * time.Second)
				}
			}
		})
		var read sync.WaitGroup
		read.Go(func() {
			got, _, err := l.read(t.Context(), p, "b")
			if err != nil {
				t.Error(err)
			}
			same(t, "read", got, want)
		})
		<-begun
		l.f.plug("near1", "10.0.1.1")
		l.awaitCards(p, 2)
		read.Wait()
		s := l.pool.Stats().RDMA
		for why, n := range s.Fallbacks {
			if n != 0 {
				t.Errorf("%d fallbacks because of %s", n, why)
			}
		}
		if s.Reads != 1 || s.Open != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// connect asks for a session with this many pairs, all on one card, and returns the answer to each.
func (l *grantSite) connect(p *Peer, pairs int) (ends []wire.End) {
	l.t.Helper()
	ends, err := l.connection(l.t.Context(), p, pairs)
	if err != nil {
		l.t.Fatal(err)
	}
	return ends
}

func (l *grantSite) connection(ctx context.Context, p *Peer, pairs int) (ends []wire.End, err error) {
	l.t.Helper()
	dev, err := l.f.open("near0")
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = dev.Close() })
	var c wire.Connection
	for range pairs {
		pair, err := dev.Pair(rdma.PairOptions{})
		if err != nil {
			l.t.Fatal(err)
		}
		c.Ends = append(c.Ends, wireEnd(pair.Local()))
	}
	err = p.call(ctx, wire.Connect, 0, c.Append(nil), func(_ wire.Stamp, body []byte) error {
		a, err := wire.ParseConnected(body, pairs)
		if err == nil {
			ends = a.Ends
		}
		return err
	})
	return ends, err
}

// TestPairsOfOnePeer: a session has one pair on each card, however many are requested.
func TestPairsOfOnePeer(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{
		cards: 2, rails: func(near, _ *RailsOptions) { near.Wanted = []string{"near1"} },
	})
	made := 0
	for _, e := range l.connect(l.grantee(NoCards), wire.MaxRails) {
		if e.QPN != 0 {
			made++
		}
	}
	if cards := l.server.Granted()[0].Cards; made != 2 || len(cards) != 2 || cards[0] == cards[1] {
		t.Errorf("%d pairs, on %v", made, cards)
	}
}

// TestSessionsOfOneHost: a program with another role does not use up the cache's sessions.
func TestSessionsOfOneHost(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{
		cards: 2, rails: func(near, _ *RailsOptions) { near.Wanted = []string{"near1"} },
	})
	p := l.grantee(Trusted)
	l.ready(p)
	agent, err := newPool(t, PoolOptions{Identity: identity(t, pkiDir, pki.Agent)}).Peer(Target{Address: l.address,
		Lane: TLS})
	if err != nil {
		t.Fatal(err)
	}
	for range mostHostSessions + 1 {
		l.connect(agent, 1)
	}
	eventually(t, "the agent's oldest ends", func() bool { return l.server.GrantStats().Open == 1+mostHostSessions })
	l.offer("b", 100_000)
	if _, _, err := l.read(t.Context(), p, "b"); err != nil || l.pool.Stats().RDMA.Reads != 1 {
		t.Errorf("the cache's session: %v %+v", err, l.pool.Stats().RDMA)
	}
}
