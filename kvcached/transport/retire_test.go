package transport

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// TestForget: what goes on with a peer that is gone for good ends well, and nothing more begins.
func TestForget(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		b := NewBandwidth(Caps{PeerIn: 1 << 40, PeerOut: 1 << 40})
		s := newSite(t, ServerOptions{Bandwidth: b}, PoolOptions{Bandwidth: b})
		want := s.store.fill("b", 100_000)
		asked, answer := make(chan struct{}), make(chan struct{})
		s.store.hook(func(h *hooks) {
			h.onGet = func(context.Context, block.Addr) error {
				close(asked)
				<-answer
				return nil
			}
		})
		p := s.peer(l)
		var pull sync.WaitGroup
		pull.Go(func() {
			got, _, err := get(t.Context(), p, "b")
			if err != nil {
				t.Error("a pull under way:", err)
			}
			same(t, "pulled", got, want)
		})
		<-asked
		target := Target{Address: s.address, Lane: l}
		s.pool.Forget(target)
		s.pool.Forget(target)
		for what, err := range map[string]error{"ping": p.Ping(t.Context()), "probe": p.Probe(t.Context())} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("a %s of a peer that was forgotten: %v", what, err)
			}
		}
		if n := s.pool.Stats().Peers; n != 1 {
			t.Errorf("%d peers while a pull goes on", n)
		}
		if again := s.peer(l); again == p {
			t.Error("the same peer")
		} else if err := again.Ping(t.Context()); err != nil {
			t.Error("a peer that is back:", err)
		}
		s.pool.Forget(target)
		close(answer)
		pull.Wait()
		if n := s.pool.Stats().Peers; n != 0 {
			t.Errorf("%d peers are left", n)
		}
		eventually(t, "nobody uses the buckets", func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			uses := 0
			for _, g := range b.hosts {
				uses += g.uses
			}
			return uses == 0
		})
	})
}

// TestForgetMany: no more peers wait for operations to end than MaxPeers.
func TestForgetMany(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{MaxPeers: 1})
	old := s.peer(TLS)
	if err := old.begin(); err != nil {
		t.Fatal(err)
	}
	s.pool.Forget(old.target)
	next := s.peer(TLS)
	if err := next.begin(); err != nil {
		t.Fatal(err)
	}
	s.pool.Forget(next.target)
	if n := s.pool.Stats().Peers; n != 1 {
		t.Errorf("%d peers", n)
	}
	old.end()
	next.end()
	if n := s.pool.Stats().Peers; n != 0 {
		t.Errorf("%d peers are left", n)
	}
}

// TestEvictWhileDialling: the pool goes on while a peer that has to make room is dialled.
func TestEvictWhileDialling(t *testing.T) {
	opening, open := make(chan struct{}), make(chan struct{})
	s := newSite(t, ServerOptions{}, PoolOptions{MaxPeers: 1, Stripes: 1, ListenUDP: func() (net.PacketConn, error) {
		close(opening)
		<-open
		return net.ListenPacket("udp", "127.0.0.1:0")
	}})
	first := s.peer(QUIC)
	var others sync.WaitGroup
	others.Go(func() {
		if err := first.Ping(t.Context()); !errors.Is(err, ErrClosed) {
			t.Error("a peer that had to make room:", err)
		}
	})
	<-opening
	others.Go(func() { s.peer(TLS) })
	eventually(t, "it has to make room", func() bool { return s.pool.Stats().Evicted == 1 })
	if err := s.peer(TLS).Ping(t.Context()); err != nil {
		t.Error("another peer meanwhile:", err)
	}
	close(open)
	others.Wait()
}

// TestCloseCutsDialling: a lane that is closed does not wait for a host that does not answer.
func TestCloseCutsDialling(t *testing.T) {
	silent := listenUDP(t)
	defer silent.Close()
	p, err := newPool(t, PoolOptions{}).Peer(Target{Address: silent.LocalAddr().String(), Lane: QUIC})
	if err != nil {
		t.Fatal(err)
	}
	var dials sync.WaitGroup
	dials.Go(func() {
		if err := p.Ping(t.Context()); !errors.Is(err, ErrClosed) || errors.Is(err, ErrUnreachable) {
			t.Error("dialled to its end:", err)
		}
	})
	if _, _, err := silent.ReadFrom(make([]byte, 2000)); err != nil {
		t.Fatal(err)
	}
	p.close()
	dials.Wait()
}

// TestBucketsGo: a host has its bucket for as long as it is connected, however many others come,
// and until it owes nothing.
func TestBucketsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBandwidth(Caps{PeerIn: 1000})
		mine := b.of("mine")
		if err := mine.wait(t.Context(), inward, 1000); err != nil {
			t.Fatal(err)
		}
		var others []*gates
		for i := range 2 * maxGates {
			others = append(others, b.of(strconv.Itoa(i)))
		}
		if b.of("mine") != mine {
			t.Error("a host that has a bucket gets another one")
		}
		if shared := others[2*maxGates-1]; shared != b.of("one more") || len(b.hosts) != maxGates+1 {
			t.Errorf("hosts beyond the bound do not share one: %d buckets", len(b.hosts))
		} else {
			b.release(shared)
		}
		for _, g := range others {
			b.release(g)
		}
		b.release(mine)
		if len(b.hosts) != 1 || b.hosts["mine"] != mine {
			t.Errorf("%d buckets when all others have gone", len(b.hosts))
		}
		if !mine.take(inward, 5000) {
			t.Error("a bucket that owes nothing does not let any pass")
		}
		b.release(mine)
		if b.of("mine") != mine {
			t.Error("a host has more by coming anew")
		}
		b.release(mine)
		time.Sleep(time.Minute) // of virtual time
		b.release(b.of("other"))
		if len(b.hosts) != 0 {
			t.Errorf("%d buckets are left", len(b.hosts))
		}
		b.release(nil)
		(*Bandwidth)(nil).release(nil)
	})
}
