package transport

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// TestCardWithoutPairs: a card that makes no pairs is said and left out, and the others are used.
func TestCardWithoutPairs(t *testing.T) {
	none := errors.New("no queue pair is left")
	for _, c := range []struct {
		cards int
		bad   string
	}{{1, "near0"}, {2, "near0"}, {2, "near1"}} {
		inVirtualTime(t, lentOptions{cards: c.cards}, func(t *testing.T, l *lent, p *Peer) {
			want := l.lend("b", 3<<20)
			l.f.set(func() { l.f.cards[c.bad].noPairs = none })
			p.borrow.fail(nil, "test", rdma.ErrBroken)
			time.Sleep(time.Second)
			p.borrow.session()
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

// TestCloseWhileItBreaks: a borrower that is closed has no pair any more, whatever happened at that time.
func TestCloseWhileItBreaks(t *testing.T) {
	l := newLent(t, lentOptions{})
	for range 10 {
		p := l.borrower(Trusted)
		l.ready(p)
		s := p.borrow.session()
		var both sync.WaitGroup
		both.Go(func() { p.borrow.fail(s, "test", rdma.ErrBroken) })
		both.Go(func() { l.pool.Forget(p.target) })
		both.Wait()
		l.f.mu.Lock()
		for pair := range l.f.cards["near0"].dev.pairs {
			t.Error("a pair is left: ", pair.qpn)
		}
		l.f.mu.Unlock()
	}
}

// TestReleaseWhileClosing: cards are closed once, and the one that is given away is when Close returns.
func TestReleaseWhileClosing(t *testing.T) {
	f := newFabric()
	c := f.plug("near0", "10.0.0.1")
	for range 200 {
		r := newRails(t, RailsOptions{Wanted: []string{AnyCard}, Present: f.present("near0"), Open: f.open, Memory: memory(t, 4096), Logger: quiet()})
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
