package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// awaitReady is ready in virtual time.
func (l *grantSite) awaitReady(p *Peer) {
	l.t.Helper()
	for range 1000 {
		if p.grantee.session() != nil {
			return
		}
		time.Sleep(100 * time.Millisecond) // of virtual time
	}
	l.t.Fatal("no session after 100 s: ", p.status().Why)
}

// awaitCards waits in virtual time until this many cards are used.
func (l *grantSite) awaitCards(p *Peer, cards int) {
	l.t.Helper()
	for range 600 {
		if p.grantee.session(); len(p.status().Cards) == cards {
			time.Sleep(10 * time.Second) // for the end of the session before
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.t.Fatalf("not %d cards after a minute: %+v", cards, p.status())
}

// inVirtualTime runs a test with cards whose reads and links it can delay.
func inVirtualTime(t *testing.T, o grantSiteOptions, fn func(t *testing.T, l *grantSite, p *Peer)) {
	synctest.Test(t, func(t *testing.T) {
		o.virtual = true
		l := newGrantSite(t, o)
		p := l.grantee(Trusted)
		l.awaitReady(p)
		fn(t, l, p)
	})
}

// guarded is a store that checks that no card can read a block when it is released.
type guarded struct {
	*mapStore
	l *grantSite
}

func (g *guarded) Get(ctx context.Context, a block.Addr) (Block, error) {
	b, err := g.mapStore.Get(ctx, a)
	if err != nil {
		return nil, err
	}
	return guardedBlock{b, g.l}, nil
}

type guardedBlock struct {
	Block
	l *grantSite
}

func (b guardedBlock) Release() {
	if b.l.f.readable(b.Bytes()) {
		b.l.t.Error("a block is let go of while it can be read")
	}
	b.Block.Release()
}

// TestGrantEnds: a reader that is slower than its grant gets the block by a stream. The owner
// releases the block when the grant is over, and when no card can read the block any more.
func TestGrantEnds(t *testing.T) {
	g := &guarded{}
	inVirtualTime(t, grantSiteOptions{server: ServerOptions{Handler: g}}, func(t *testing.T, l *grantSite, p *Peer) {
		g.mapStore, g.l = l.store, l
		want := l.offer("b", 100_000)
		l.f.set(func() { l.f.reading = func(rdma.Read) { time.Sleep(20 * time.Second) } })
		start, ended := time.Now(), make(chan struct{})
		go func() {
			defer close(ended)
			time.Sleep(time.Second)
			if n := l.server.GrantStats().Grants; n != 1 {
				t.Errorf("%d grants after 1 s", n)
			}
			time.Sleep(4200 * time.Millisecond)
			if n := l.server.GrantStats().Grants; n != 0 || l.store.holds() != 0 {
				t.Errorf("%d grants after 5.2 s, %d blocks are held", n, l.store.holds())
			}
		}()
		got, _, err := l.read(t.Context(), p, "b")
		<-ended
		if err != nil {
			t.Fatal(err)
		}
		same(t, "by a stream", got, want)
		t.Log("took", time.Since(start))
		s := l.pool.Stats().RDMA
		if s.Fallbacks["access"]+s.Fallbacks["timeout"] != 1 || s.Broken != 1 || l.server.GrantStats().Expired != 1 {
			t.Errorf("%+v %+v", s, l.server.GrantStats())
		}
		l.f.set(func() { l.f.reading = nil })
		l.awaitReady(p)
		if _, _, err := l.read(t.Context(), p, "b"); err != nil || l.pool.Stats().RDMA.Reads != 1 {
			t.Error("afterwards:", err)
		}
	})
}

// TestAnew: a block is requested anew if its turn comes when its grant is nearly over.
func TestAnew(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 100_000)
		slow := true
		var buf []byte
		_, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace,
			Alloc: func(_ Found, n int) ([]byte, error) {
				if !slow {
					t.Error("memory is asked for twice")
				}
				slow = false
				time.Sleep(4500 * time.Millisecond)
				buf = l.room(n)
				return buf, nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		same(t, "read", buf, want)
		if s := l.pool.Stats().RDMA; s.Reads != 1 || s.Asked != 2 || s.Broken != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestLinkDown: the link goes down during a read. The read ends within the card's retries, and the
// block comes by a stream. The pauses between attempts grow. RDMA is used again when the link is
// back.
func TestLinkDown(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 100_000)
		l.f.set(func() { l.f.down = true })
		start := time.Now()
		got, _, err := l.read(t.Context(), p, "b")
		if err != nil || time.Since(start) > 5*time.Second {
			t.Fatal(err, time.Since(start))
		}
		same(t, "by a stream", got, want)
		for range 240 { // 2 minutes
			if _, _, err := l.read(t.Context(), p, "b"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		s := l.pool.Stats().RDMA
		if s.Fallbacks["unreachable"] != 1 || s.Fallbacks["no_session"] != 240 || s.Unmade < 6 || s.Unmade > 20 {
			t.Errorf("%+v", s)
		}
		l.f.set(func() { l.f.down = false })
		l.awaitReady(p)
		if got, _, err = l.read(t.Context(), p, "b"); err != nil || l.pool.Stats().RDMA.Reads != 1 {
			t.Error("the link is back:", err)
		}
		same(t, "read", got, want)
		if n := l.server.GrantStats().Open; n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}

// TestCardReleased: a card that is released under load is closed at once. No read is wrong or lost.
// The card is used again when it is back.
func TestCardReleased(t *testing.T) {
	for _, side := range []string{"near", "far"} {
		t.Run(side, func(t *testing.T) {
			inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
				want := l.offer("b", 100_000)
				rails, name := map[string]*Rails{"near": l.nearRails, "far": l.farRails}[side], side+"0"
				l.f.set(func() { l.f.reading = func(rdma.Read) { time.Sleep(3 * time.Millisecond) } })
				stop, all := l.load(p, "b", want)
				time.Sleep(time.Second)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				if err := rails.Release(ctx, name); err != nil || time.Since(start) > 5*time.Second {
					t.Fatal(err, time.Since(start))
				}
				time.Sleep(10 * time.Second)
				if cards := rails.Cards(); cards[0].Why != errKept.Error() || l.f.opened(l.f.cards[name]) {
					t.Errorf("it was taken back: %+v", cards)
				}
				l.f.unplug(name)
				time.Sleep(10 * time.Second)
				if err := rails.Release(ctx, name); err != nil || rails.Cards()[0].Why != errAbsent.Error() {
					t.Errorf("one that is not there: %v, %+v", err, rails.Cards())
				}
				l.f.plug(name, map[string]string{"near": "10.0.0.1", "far": "10.0.0.2"}[side])
				before := l.pool.Stats().RDMA.Reads
				time.Sleep(time.Minute)
				close(stop)
				all.Wait()
				if s := l.pool.Stats().RDMA; s.Reads == before || s.Broken == 0 || s.Fallbacks["no_session"] == 0 {
					t.Errorf("%+v, before %d", s, before)
				}
			})
		})
	}
}

// load reads a block again and again, from several goroutines, until stop is closed.
func (l *grantSite) load(p *Peer, key string, want []byte) (stop chan struct{}, all *sync.WaitGroup) {
	stop, all = make(chan struct{}), &sync.WaitGroup{}
	for range 4 {
		buf := l.room(len(want))
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := p.Get(l.t.Context(), Get{Addr: addr(key), Namespace: namespace,
					Alloc: func(Found, int) ([]byte, error) { return buf, nil }})
				if err != nil {
					l.t.Error(err)
				}
				same(l.t, "under load", buf, want)
				clear(buf)
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	return stop, all
}

// TestCardUnplugged is TestCardReleased for a card that is removed without a release.
func TestCardUnplugged(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 100_000)
		stop, all := l.load(p, "b", want)
		time.Sleep(time.Second)
		l.f.unplug("far0")
		time.Sleep(5 * time.Second)
		if why := l.farRails.Cards()[0].Why; why != errAbsent.Error() {
			t.Error(why)
		}
		l.f.plug("far0", "10.0.0.2")
		l.awaitReady(p)
		close(stop)
		all.Wait()
		if err := l.farRails.Release(t.Context(), "none"); !errors.Is(err, ErrNoCard) {
			t.Error(err)
		}
	})
}

// TestOneOfTwoRails: large blocks come over both cards, and over one card while the other fails.
func TestOneOfTwoRails(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{cards: 2}, func(t *testing.T, l *grantSite, p *Peer) {
		want := l.offer("b", 3<<20+5)
		check := func(what string, rails int) {
			t.Helper()
			var lengths []int
			l.f.set(func() {
				l.f.reading = func(r rdma.Read) { l.mu.Lock(); lengths = append(lengths, len(r.Into)); l.mu.Unlock() }
			})
			got, _, err := l.read(t.Context(), p, "b")
			l.f.set(func() { l.f.reading = nil })
			if err != nil || len(lengths) != rails {
				t.Errorf("%s: parts of %v, %v", what, lengths, err)
			}
			same(t, what, got, want)
		}
		check("both", 2)
		l.f.unplug("near1")
		time.Sleep(time.Second)
		l.awaitReady(p)
		check("one", 1)
		l.f.plug("near1", "10.0.1.1")
		l.awaitCards(p, 2)
		check("both again", 2)
		l.f.unplug("far1")
		time.Sleep(time.Second)
		l.awaitReady(p)
		check("one of the owner's", 1)
		l.f.plug("far1", "10.0.1.2")
		l.awaitCards(p, 2)
		check("both of the owner's again", 2)
		if s := l.pool.Stats().RDMA; s.Broken != 2 || s.Open != 1 || l.server.GrantStats().Open != 1 {
			t.Errorf("%+v %+v", s, l.server.GrantStats())
		}
	})
}

// TestCancelled: a Get whose caller leaves returns soon, once nothing writes to its memory any
// more.
func TestCancelled(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		l.offer("b", 100_000)
		var late atomic.Bool
		for _, takes := range []time.Duration{300 * time.Millisecond, 3 * time.Second} {
			l.f.set(func() { l.f.reading = func(rdma.Read) { time.Sleep(takes); late.Store(true) } })
			late.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			_, _, err := l.read(ctx, p, "b")
			cancel()
			if good := takes < leaveIn+100*time.Millisecond; !late.Load() || good != (err == nil) ||
				!good && !errors.Is(err, context.DeadlineExceeded) {
				t.Error(takes, err, "it returned before the read has ended:", !late.Load())
			}
		}
		if n := l.pool.Stats().RDMA.Broken; n != 1 {
			t.Errorf("%d sessions broke", n)
		}
	})
}

// TestPeerRestartsMidRead: the owner ends while blocks are read, and comes back without the
// session.
func TestPeerRestartsMidRead(t *testing.T) {
	key := [32]byte{1, 2, 3}
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{ResetKey: &key}})
	p := l.grantee(Trusted)
	l.ready(p)
	want := l.offer("b", 100_000)
	if _, _, err := l.read(t.Context(), p, "b"); err != nil {
		t.Fatal(err)
	}
	l.kill()
	l.serve(ServerOptions{ResetKey: &key, Handler: l.store, Rails: l.farRails}, l.address)
	eventually(t, "it is read by RDMA again", func() bool {
		before := l.pool.Stats().RDMA.Reads
		got, _, err := l.read(t.Context(), p, "b")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after the restart", got, want)
		return l.pool.Stats().RDMA.Reads > before
	})
}

// TestMemlock: a limit that is too low is reported with its fix. The card is used when the limit is
// raised.
func TestMemlock(t *testing.T) {
	var log bytes.Buffer
	l := newGrantSite(t, grantSiteOptions{rails: func(near, far *RailsOptions) {
		open := far.Open
		far.Open = func(name string) (rdma.Device, error) {
			dev, err := open(name)
			return limited{dev}, err
		}
		far.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}})
	card := l.farRails.Cards()[0]
	for _, part := range []string{"limit of locked memory", "LimitMEMLOCK=infinity", "ulimit -l", "33 MiB"} {
		if !strings.Contains(card.Why, part) || !strings.Contains(log.String(), part) {
			t.Errorf("%q is missing in %q, or in the log: %s", part, card.Why, log.String())
		}
	}
	p := l.grantee(Trusted)
	want := l.offer("b", 100_000)
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "by a stream", got, want)
	eventually(t, "the reason", func() bool { return p.status().Why == reasonOf(wire.ByStream) })
}

// limited is a card that may not lock memory.
type limited struct{ rdma.Device }

func (limited) Register(mem []byte) error {
	return fmt.Errorf("%w: it is 64 KiB, and %d bytes are to be locked", rdma.ErrMemlock, len(mem))
}
