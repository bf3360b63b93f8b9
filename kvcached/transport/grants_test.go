package transport

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// slowStore delays blocks that are called "slow".
type slowStore struct{ *mapStore }

func (g *slowStore) Get(ctx context.Context, a block.Addr) (Block, error) {
	if a == addr("slow") {
		t := time.NewTimer(time.Second)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return g.mapStore.Get(ctx, a)
}

// errHead is the error of a caller that waits too long for a peer's answer.
var errHead = errors.New("no answer in 2 s")

// headed reads a block with the time limit that the fleet sets for the head of an answer.
func (l *grantSite) headed(p *Peer, key string) (took time.Duration, err error) {
	ctx, cancel := context.WithCancelCause(l.t.Context())
	defer cancel(nil)
	head := time.AfterFunc(2*time.Second, func() { cancel(errHead) })
	defer head.Stop()
	start := time.Now()
	_, err = p.Get(ctx, Get{Addr: addr(key), Namespace: namespace, Alloc: func(_ Found, n int) ([]byte, error) {
		head.Stop()
		return l.room(n), nil
	}})
	return time.Since(start), err
}

// TestSlowBlock: a block that the owner has to fetch comes by a stream. Blocks that are requested
// with it or after it do not wait for it.
func TestSlowBlock(t *testing.T) {
	g := &slowStore{}
	inVirtualTime(t, grantSiteOptions{server: ServerOptions{Handler: g}}, func(t *testing.T, l *grantSite, p *Peer) {
		g.mapStore = l.store
		l.offer("slow", 100_000)
		const blocks = 16
		for i := range blocks {
			l.offer(fmt.Sprint("b", i), 100_000)
		}
		var all sync.WaitGroup
		all.Go(func() {
			if took, err := l.headed(p, "slow"); err != nil || took > 1500*time.Millisecond {
				t.Error("the slow one:", took, err)
			}
		})
		for i := range blocks {
			all.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if took, err := l.headed(p, fmt.Sprint("b", i)); err != nil || took > 250*time.Millisecond {
					t.Errorf("block %d beside it: %s %v", i, took, err)
				}
			})
		}
		all.Wait()
		if s := l.pool.Stats().RDMA; s.Reads != blocks || s.Fallbacks["not_granted"] != 1 || s.Broken != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestSlowGrant: readers do not wait for an owner whose card is slow. They ask for other grants
// meanwhile. The session stays.
func TestSlowGrant(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		l.offer("first", 100_000)
		l.offer("next", 100_000)
		var grants atomic.Int64
		l.f.set(func() {
			l.f.granted = func() {
				if grants.Add(1) == 1 {
					time.Sleep(bindWithin - time.Second)
				}
			}
		})
		var both sync.WaitGroup
		both.Go(func() {
			if took, err := l.headed(p, "first"); err != nil || took > 600*time.Millisecond {
				t.Error("what is not granted:", took, err)
			}
		})
		time.Sleep(10 * time.Millisecond)
		if took, err := l.headed(p, "next"); err != nil || took > 250*time.Millisecond {
			t.Error("what is granted meanwhile:", took, err)
		}
		both.Wait()
		time.Sleep(10 * time.Second)
		s, o := l.pool.Stats().RDMA, l.server.GrantStats()
		if s.Reads != 1 || s.Fallbacks["no_grant"] != 1 || s.Broken != 0 || o.Open != 1 || o.Sessions != 1 ||
			o.Grants != 0 || l.store.holds() != 0 {
			t.Errorf("%+v %+v", s, o)
		}
	})
}

// TestStuckCard: a card that neither makes nor revokes windows ends the session. No block stays
// granted.
func TestStuckCard(t *testing.T) {
	for what, hook := range map[string]func(f *fabric) *func(){
		"makes": func(f *fabric) *func() {
			return &f.granted
		}, "revokes": func(f *fabric) *func() { return &f.revoked },
	} {
		t.Run(what, func(t *testing.T) {
			inVirtualTime(t, grantSiteOptions{server: longGrant}, func(t *testing.T, l *grantSite, p *Peer) {
				want := l.offer("b", 100_000)
				l.f.set(func() { *hook(l.f) = func() { time.Sleep(bindWithin + time.Second) } })
				got, _, err := l.read(t.Context(), p, "b")
				if err != nil {
					t.Fatal(err)
				}
				same(t, "read", got, want)
				time.Sleep(bindWithin / 2)
				if l.store.holds() != 1 {
					t.Error("it is let go of while it may be read")
				}
				time.Sleep(bindWithin)
				if s := l.server.GrantStats(); s.Open != 0 || s.Grants != 0 || l.store.holds() != 0 {
					t.Errorf("%+v", s)
				}
				l.f.set(func() { *hook(l.f) = nil })
				time.Sleep(time.Second)
				l.awaitReady(p)
			})
		})
	}
}

// TestGrantedUnderCap: blocks are granted while the owner's cap has room. Others come by streams,
// which wait for the cap. A caller with little time gets its answer in time.
func TestGrantedUnderCap(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{server: ServerOptions{Bandwidth: NewBandwidth(0, 1<<20)}},
		func(t *testing.T, l *grantSite, p *Peer) {
			l.offer("b", 3<<20)
			start := time.Now()
			for i := range 4 {
				if took, err := l.headed(p, "b"); err != nil {
					t.Error(i, took, err)
				}
			}
			s := l.pool.Stats().RDMA
			if took := time.Since(start); s.Reads == 0 || s.Fallbacks["not_granted"] == 0 || took < 8*time.Second ||
				took > 13*time.Second {
				t.Errorf("12 MiB at 1 MiB/s in %s: %+v", took, s)
			}
		})
}

// TestFallbackUnderCap: a block waits for the reader's cap only once. If its read fails after the
// wait, a stream brings the block without another wait.
func TestFallbackUnderCap(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{pool: PoolOptions{Bandwidth: NewBandwidth(1<<20, 0)}},
		func(t *testing.T, l *grantSite, p *Peer) {
			want := l.offer("b", 3<<20)
			l.f.set(func() { l.f.down = true })
			start := time.Now()
			got, _, err := l.read(t.Context(), p, "b")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "by a stream", got, want)
			if took := time.Since(start); took < 3*time.Second || took > 7*time.Second ||
				l.pool.Stats().RDMA.Fallbacks["unreachable"]+l.pool.Stats().RDMA.Fallbacks["timeout"] != 1 {
				t.Errorf("3 MiB at 1 MiB/s, and a card's retries for at most 2 s: %s %+v", took,
					l.pool.Stats().RDMA.Fallbacks)
			}
		})
}

// TestGivenBack: bytes whose caller has left do not count for the cap.
func TestGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewBandwidth(1000, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.wait(ctx, inward, 5000); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if !g.take(inward, 1000) {
			t.Error("what was given up has to be paid for")
		}
		if g.take(inward, 1) {
			t.Error("more than was paid for is let pass")
		}
		time.Sleep(time.Second)
		if !g.take(inward, 1) {
			t.Error("what was paid for is not let pass")
		}
	})
}

// TestGrantsAtOnce: a session never has more grants than its bound, however many requests run at a
// time.
func TestGrantsAtOnce(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{pool: PoolOptions{TLSConns: 128}})
	p := l.grantee(Trusted)
	l.ready(p)
	id := p.grantee.session().id
	l.offer("empty", 0)
	var asked atomic.Int64
	let := make(chan struct{})
	l.store.hook(func(m *hooks) {
		m.onGet = func(ctx context.Context, _ block.Addr) error {
			asked.Add(1)
			<-let
			return nil
		}
	})
	const grants = mostGranted + 16
	body := (&wire.Wanted{Session: id, Addrs: []block.Addr{addr("empty")}}).Append(nil)
	var all sync.WaitGroup
	var granted atomic.Int64
	for range grants {
		all.Go(func() {
			err := p.call(t.Context(), wire.Grant, 0, body, func(_ wire.Stamp, body []byte) error {
				a, err := wire.ParseGranted(body, 1, 1)
				if err == nil && a.Blocks[0].Status == wire.OK {
					granted.Add(1)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "as many as may be are looked up", func() bool { return asked.Load() == mostGranted })
	eventually(t, "others are refused", func() bool { return l.server.GrantStats().ByStream == grants-mostGranted })
	close(let)
	all.Wait()
	if n := l.server.GrantStats().Grants; n != mostGranted || granted.Load() != mostGranted {
		t.Errorf("%d grants, %d blocks", n, granted.Load())
	}
}

// TestOwed: a grant may be over for the reader while the owner may still have it, because the owner
// began it later. The reader gives this grant back.
func TestOwed(t *testing.T) {
	inVirtualTime(t, grantSiteOptions{}, func(t *testing.T, l *grantSite, p *Peer) {
		l.awaitReady(p)
		now, late := time.Now(), l.pool.o.GrantIn
		b := p.grantee
		b.mu.Lock()
		defer b.mu.Unlock()
		b.s.owe([]owed{{1, now.Add(time.Second)}, {2, now.Add(time.Nanosecond - late)}, {3, now.Add(-late)},
			{0, now.Add(time.Second)}})
		if got := idsOf(b.s.takeDone()); !slices.Equal(got, []uint64{1, 2}) {
			t.Error(got)
		}
	})
}
