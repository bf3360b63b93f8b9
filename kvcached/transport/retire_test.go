package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestForget: running operations on a forgotten peer end well, and no others begin.
func TestForget(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
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
		eventually(t, "no peer is left", func() bool { return s.pool.Stats().Peers == 0 })
	})
}

// slowLane is a lane that closes once open is closed.
type slowLane struct {
	lane
	closing *atomic.Int32 // calls of close
	open    <-chan struct{}
}

func (l slowLane) close() {
	l.closing.Add(1)
	<-l.open
	l.lane.close()
}

// TestCloseTogether: Forget does not wait for a peer to close, and Close waits for all peers
// together.
func TestCloseTogether(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	var closing atomic.Int32
	open := make(chan struct{})
	for i := range 10 {
		p, err := s.pool.Peer(Target{Address: fmt.Sprint("127.0.0.1:", i+1), Lane: TLS})
		if err != nil {
			t.Fatal(err)
		}
		p.lanes[overTLS] = slowLane{p.lanes[overTLS], &closing, open}
	}
	for i := range 5 {
		s.pool.Forget(Target{Address: fmt.Sprint("127.0.0.1:", i+1), Lane: TLS})
	}
	closed := make(chan error)
	go func() { closed <- s.pool.Close() }()
	eventually(t, "all peers close", func() bool { return closing.Load() == 10 })
	select {
	case err := <-closed:
		t.Error("Close waits for no peer:", err)
	default:
	}
	close(open)
	if err := <-closed; err != nil || s.pool.Stats().Peers != 0 {
		t.Errorf("%d peers are left: %v", s.pool.Stats().Peers, err)
	}
}

// TestForgetMany: at most MaxPeers forgotten peers wait for their operations to end.
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
	eventually(t, "one peer waits", func() bool { return s.pool.Stats().Peers == 1 })
	old.end()
	next.end()
	eventually(t, "no peer is left", func() bool { return s.pool.Stats().Peers == 0 })
}

// TestEvictWhileDialling: the pool goes on while an evicted peer is being dialled.
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
	<-first.lanes[overQUIC].(*streams).opener.(*quicLane).life.Done() // Evicted counts it before it is closed
	close(open)
	others.Wait()
}

// TestCloseCutsDialling: closing a lane does not wait for a host that does not answer.
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
