package transport

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// watched is a card that shows its registrations and its end to a test.
type watched struct {
	rdma.Device
	register func() error
	closing  func()
}

func (d *watched) Register(mem []byte) error {
	if err := d.register(); err != nil {
		return err
	}
	return d.Device.Register(mem)
}

func (d *watched) Close() error {
	d.closing()
	return d.Device.Close()
}

// cardsOf opens cards as the test says.
func cardsOf(t *testing.T, f *fabric, present func() map[string]string, register func() error, closing func()) *Rails {
	t.Helper()
	return newRails(t, RailsOptions{Wanted: []string{AnyCard}, Present: present, Memory: memory(t, 4096),
		Logger: quiet(), Open: func(name string) (rdma.Device, error) {
			dev, err := f.open(name)
			return &watched{dev, register, closing}, err
		}})
}

// TestReleaseWhileOpening: a card that is released while it is being opened is closed when Release
// returns. Other cards go on meanwhile.
func TestReleaseWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		opening, closing, let := make(chan struct{}), make(chan struct{}), make(chan struct{})
		register := func() error {
			if opening != nil {
				close(opening)
				opening = nil
				<-let
			}
			return nil
		}
		r := cardsOf(t, f, f.present("near0"), register, func() { close(closing); time.Sleep(time.Second) })
		begun := opening
		c := f.plug("near0", "10.0.0.1")
		<-begun
		var release sync.WaitGroup
		release.Go(func() {
			if err := r.Release(t.Context(), "near0"); err != nil || f.opened(c) {
				t.Error("it is open when it was given away:", err)
			}
		})
		synctest.Wait()
		close(let)
		<-closing
		start := time.Now()
		if cards := r.Cards(); len(cards) != 1 || !cards[0].Kept || time.Since(start) != 0 {
			t.Errorf("%+v after %s", cards, time.Since(start))
		}
		release.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestReopenPauses: a card that cannot be opened is tried again, less and less often. Another card
// of the same name is tried soon.
func TestReopenPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		f.plug("near0", "10.0.0.1")
		var mu sync.Mutex
		tries, fails := 0, true
		r := cardsOf(t, f, f.present("near0"), func() error {
			mu.Lock()
			defer mu.Unlock()
			if tries++; fails {
				return rdma.ErrMemlock
			}
			return nil
		}, func() {})
		time.Sleep(10 * time.Minute)
		mu.Lock()
		if tries < 10 || tries > 16 {
			t.Errorf("%d tries in 10 minutes", tries)
		}
		fails = false
		mu.Unlock()
		f.unplug("near0")
		time.Sleep(3 * time.Second)
		f.plug("near0", "10.0.0.1")
		time.Sleep(3 * time.Second)
		if len(r.Open()) != 1 {
			t.Errorf("%+v", r.Cards())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestManyCards: cards that were removed leave room for others, and the bound on used cards holds.
func TestManyCards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFabric()
		var names []string
		for i := range 3 * wire.MaxRails {
			names = append(names, fmt.Sprintf("near%02d", i))
		}
		r := cardsOf(t, f, f.present(names...), func() error { return nil }, func() {})
		defer r.Close()
		for round := range 3 {
			some := names[round*wire.MaxRails:][:wire.MaxRails]
			for i, name := range some {
				f.plug(name, fmt.Sprintf("10.0.%d.1", i))
			}
			time.Sleep(5 * time.Second)
			if open := r.Open(); !slices.Equal(open, some) || len(r.Cards()) != wire.MaxRails {
				t.Errorf("round %d: %v of %+v", round, open, r.Cards())
			}
			for _, name := range some {
				f.unplug(name)
			}
			time.Sleep(5 * time.Second)
		}
	})
}

// TestQuestionsCount: a long list of wanted blocks counts as in flight. A list of blocks that are
// given back always passes.
func TestQuestionsCount(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{MaxInFlight: HostShare * 10_000}})
	p := l.grantee(Trusted)
	l.ready(p)
	id := p.grantee.session().id
	addrs := make([]block.Addr, wire.MaxGrant)
	l.server.mu.Lock()
	var h *host
	for _, h = range l.server.hosts {
		h.bytes.Add(9_000)
	}
	l.server.mu.Unlock()
	nothing := func(wire.Stamp, []byte) error { return nil }
	if err := p.call(t.Context(), wire.Grant, 0, (&wire.Wanted{Session: id, Addrs: addrs}).Append(nil),
		nothing); err == nil {
		t.Error("it does not count")
	}
	if err := p.call(t.Context(), wire.Release, 0,
		(&wire.Returned{Session: id, Grants: make([]uint64, wire.MaxDone)}).Append(nil), nothing); err != nil {
		t.Error("grants that are given back:", err)
	}
	if err := p.call(t.Context(), wire.Grant, 0, (&wire.Wanted{Session: id, Addrs: addrs[:1]}).Append(nil),
		nothing); err != nil {
		t.Error("one block:", err)
	}
	h.bytes.Add(-9_000)
}

// TestIdleSession: a session that the peer has ended because it was unused is made anew without an
// error.
func TestIdleSession(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 100_000)
		for range 2 {
			time.Sleep(sessionIdle + sessionIdle/2)
			l.awaitReady(p)
			got, _, err := l.read(t.Context(), p, "b")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "read", got, want)
		}
		if s := l.pool.Stats().RDMA; s.Reads != 2 || s.Broken != 0 || s.Unmade != 0 || s.Open != 1 ||
			l.server.GrantStats().Open != 1 {
			t.Errorf("%+v %+v", s, l.server.GrantStats())
		}
	})
}

// TestIdleSessionOverTLS: the peer ends a session when its last TLS connection closes because it
// was unused. The session is made anew without an error.
func TestIdleSessionOverTLS(t *testing.T) {
	const idle = time.Second
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{Idle: 2 * idle}, pool: PoolOptions{Idle: idle}})
	p, err := l.pool.Peer(Target{Address: l.address, Lane: TLS, Cards: Demanded})
	if err != nil {
		t.Fatal(err)
	}
	want := l.offer("b", 100_000)
	l.ready(p)
	eventually(t, "the peer ends the session", func() bool { return l.server.GrantStats().Open == 0 })
	b := p.grantee
	b.mu.Lock()
	b.s.asked = b.s.asked.Add(-time.Minute)
	b.mu.Unlock()
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "read", got, want)
	eventually(t, "another session", func() bool { return l.pool.Stats().RDMA.Sessions == 2 })
	if s := l.pool.Stats().RDMA; s.Broken != 0 || s.Unmade != 0 || p.status().Error != "" {
		t.Errorf("%+v %s", s, p.status().Error)
	}
}
