package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// longGrant makes grants last an hour. If a grant ends in a test, its reader has given it back.
var longGrant = ServerOptions{Grant: time.Hour}

// connectAll opens all connections to a peer. A later operation then does not wait for a
// connection.
func (l *grantSite) connectAll(p *Peer) {
	l.t.Helper()
	for range 2 * l.pool.o.Stripes {
		if err := p.Ping(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}
}

// TestLateAnswer: the reader gives up while the answer to a Grant is on its way. The owner releases
// the granted blocks as soon as it hears of that.
func TestLateAnswer(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{server: longGrant}, func(t *testing.T, l *grantSite, p *Peer) {
		l.offer("b", 100_000)
		l.connectAll(p)
		l.f.set(func() {
			// 10 ms there, and 10 ms back
			l.f.granted = func() { time.Sleep(l.pool.o.GrantIn - 15*time.Millisecond) }
		})
		if _, _, err := l.read(t.Context(), p, "b"); err != nil {
			t.Error(err)
		}
		if s := l.server.GrantStats(); s.Blocks != 1 || l.pool.Stats().RDMA.Fallbacks["no_grant"] != 1 {
			t.Errorf("the answer is not late: %+v %+v", s, l.pool.Stats().RDMA)
		}
		time.Sleep(100 * time.Millisecond)
		if s := l.server.GrantStats(); s.Open != 1 || s.Grants != 0 || s.Granted != 0 || s.Expired != 0 ||
			l.store.holds() != 0 || l.f.readable(l.far) {
			t.Errorf("%+v, %d blocks are held", s, l.store.holds())
		}
	})
}

// askGrant requests one block with the given request number.
func askGrant(ctx context.Context, l lane, session, request uint64, key string) (grant uint64, err error) {
	body := (&wire.Wanted{Session: session, Addrs: []block.Addr{addr(key)}}).Append(nil)
	err = l.call(ctx, wire.Grant, 0, request, body, func(_ wire.Stamp, body []byte) error {
		a, err := wire.ParseGranted(body, 1, 1)
		if err == nil {
			grant = a.Grant
		}
		return err
	})
	return grant, err
}

// TestGivenBackTooEarly: a grant that is given back before it begins never begins. The owner
// remembers the last of these grants. All other grants begin.
func TestGivenBackTooEarly(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{server: longGrant})
	p := l.grantee(Trusted)
	l.ready(p)
	session, lane := p.grantee.session().id, p.lanes[overQUIC]
	l.offer("b", 1000)
	back := func(grants ...uint64) {
		t.Helper()
		if err := p.call(t.Context(), wire.Release, 0, (&wire.Returned{Session: session, Grants: grants}).Append(nil),
			func(wire.Stamp, []byte) error { return nil }); err != nil {
			t.Error(err)
		}
	}
	early := l.pool.request.Add(1)
	l.store.hook(func(h *hooks) {
		h.onGet = func(context.Context, block.Addr) error { back(wire.GrantOf(early)); return nil }
	})
	if grant, err := askGrant(t.Context(), lane, session, early, "b"); !errors.Is(err, wire.Deadline) {
		t.Errorf("grant %d, %v", grant, err)
	}
	l.settled()
	l.store.hook(func(h *hooks) { h.onGet = nil })
	next := l.pool.request.Add(1)
	if grant, err := askGrant(t.Context(), lane, session, next, "b"); err != nil || grant != wire.GrantOf(next) {
		t.Errorf("grant %d, %v", grant, err)
	}
	if grant, err := askGrant(t.Context(), lane, session, next, "b"); !errors.Is(err, wire.Deadline) ||
		l.server.GrantStats().Grants != 1 {
		t.Errorf("two grants of one number: %d, %v", grant, err)
	}
	var others []uint64
	for range mostGranted {
		others = append(others, wire.GrantOf(l.pool.request.Add(1)))
	}
	back(others...)
	if grant, err := askGrant(t.Context(), lane, session, early, "b"); err != nil {
		t.Errorf("more is remembered than there may be: grant %d, %v", grant, err)
	}
	back(wire.GrantOf(early), wire.GrantOf(next))
	l.settled()
}

// dropping closes the last TLS connection when something is granted.
func (l *grantSite) dropping(last *atomic.Pointer[net.TCPConn]) {
	l.f.set(func() {
		l.f.granted = func() { _, _ = last.Load().SetLinger(0), last.Load().Close() }
	})
}

// lastDialled records the last TLS connection.
func lastDialled(last *atomic.Pointer[net.TCPConn]) PoolOptions {
	return PoolOptions{DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			last.Store(c.(*net.TCPConn))
		}
		return c, err
	}}
}

// TestAnswerGetsLost: the connection ends before the answer is written. No block stays granted.
func TestAnswerGetsLost(t *testing.T) {
	var last atomic.Pointer[net.TCPConn]
	l := newGrantSite(t, grantSiteOptions{server: longGrant, pool: lastDialled(&last)})
	p := l.grantee(Trusted) // its connections stay
	l.ready(p)
	l.offer("b", 1000)
	l.dropping(&last)
	if grant, err := askGrant(t.Context(), l.peer(TLS).lanes[overTLS], p.grantee.session().id, 0, "b"); err == nil {
		t.Errorf("grant %d", grant)
	}
	eventually(t, "it was granted", func() bool { return l.server.GrantStats().Blocks == 1 })
	l.settled()
	if n := l.server.GrantStats().Open; n != 1 {
		t.Errorf("%d sessions: it ended because of that", n)
	}
}

// TestSessionGetsLost: the connection ends before the answer to Connect is written. The session
// ends.
func TestSessionGetsLost(t *testing.T) {
	var last atomic.Pointer[net.TCPConn]
	l := newGrantSite(t, grantSiteOptions{pool: lastDialled(&last)})
	if err := l.peer(QUIC).Ping(t.Context()); err != nil { // a connection that stays
		t.Fatal(err)
	}
	l.dropping(&last)
	body := (&wire.Connection{Ends: []wire.End{{GID: netip.MustParseAddr("10.0.0.1").As16(), QPN: 1,
		MTU: 1024}}}).Append(nil)
	if err := l.peer(TLS).call(t.Context(), wire.Connect, 0, body, func(wire.Stamp, []byte) error {
		return nil
	}); err == nil {
		t.Error("it was answered")
	}
	eventually(t, "it was made, and has ended", func() bool {
		s := l.server.GrantStats()
		return s.Sessions == 1 && s.Open == 0
	})
}

// TestGivesUpAnywhere: readers give up at any moment of a Grant, on both lanes. No block stays
// granted.
func TestGivesUpAnywhere(t *testing.T) {
	onBothLanes(t, func(t *testing.T, which Lane) {
		l := newGrantSite(t, grantSiteOptions{server: longGrant})
		p := l.grantee(Trusted) // its connections stay
		l.ready(p)
		l.offer("b", 1000)
		session, asks := p.grantee.session().id, l.peer(which).lanes[overTLS]
		if which == QUIC {
			asks = p.lanes[overQUIC]
		}
		once := func(ctx context.Context) {
			request := l.pool.request.Add(1)
			_, _ = askGrant(ctx, asks, session, request, "b")
			back := (&wire.Returned{Session: session, Grants: []uint64{wire.GrantOf(request)}}).Append(nil)
			if err := p.call(t.Context(), wire.Release, 0, back, func(wire.Stamp, []byte) error {
				return nil
			}); err != nil {
				t.Error(err)
			}
		}
		start := time.Now()
		once(t.Context())
		took := time.Since(start)
		var all sync.WaitGroup
		const readers, each = 4, 100
		for range readers {
			all.Go(func() {
				for range each {
					ctx, cancel := context.WithTimeout(t.Context(), rand.N(2*took))
					once(ctx)
					cancel()
				}
			})
		}
		all.Wait()
		l.settled()
		n := l.server.GrantStats()
		if n.Expired != 0 || n.Open != 1 {
			t.Errorf("%+v", n)
		}
		t.Logf("%d of %d Grants came, and %d were granted under", n.Asked, 1+readers*each, n.Blocks)
	})
}

// TestReleaseFails: grants whose Release failed are given back later, for as long as they may last.
// The attempts have pauses.
func TestReleaseFails(t *testing.T) {
	var deaf atomic.Bool
	allow := func(r pki.Role, op wire.Op) bool { return DefaultAllow(r, op) && (op != wire.Release || !deaf.Load()) }
	inVirtualTime(t, grantSiteOptions{server: ServerOptions{Grant: 5 * time.Second, Allow: allow}},
		func(t *testing.T, l *grantSite, p *Peer) {
			l.offer("b", 100_000)
			l.connectAll(p)
			deaf.Store(true)
			read := func(grants int64) {
				t.Helper()
				if _, _, err := l.read(t.Context(), p, "b"); err != nil {
					t.Error(err)
				}
				time.Sleep(2 * time.Second)
				if s := l.server.GrantStats(); s.Grants != grants {
					t.Errorf("%+v", s)
				}
			}
			tries := func() uint64 { return l.pool.Stats().RDMA.Releases }
			read(1)
			if n := tries(); n < 4 || n > 9 {
				t.Errorf("asked %d times in 2 s", n)
			}
			read(1) // the next Grant gives back the grants that the last read left
			deaf.Store(false)
			time.Sleep(releaseAgain + time.Second)
			if s := l.server.GrantStats(); s.Grants != 0 || s.Expired != 0 || l.store.holds() != 0 {
				t.Errorf("%+v", s)
			}
			deaf.Store(true)
			read(1)
			time.Sleep(4 * time.Second)
			n := tries()
			time.Sleep(time.Minute)
			if tries() != n || l.server.GrantStats().Expired != 1 || p.grantee.session() == nil {
				t.Errorf("%d tries after the grant has ended by itself: %+v", tries()-n, l.server.GrantStats())
			}
			s := p.grantee.session()
			p.grantee.giveBack(s, make([]owed, 2*wire.MaxDone)...)
			p.grantee.mu.Lock()
			defer p.grantee.mu.Unlock()
			if len(s.done) != wire.MaxDone {
				t.Errorf("%d grants wait to be given back", len(s.done))
			}
		})
}
