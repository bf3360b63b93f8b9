package transport

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
)

// relay is a UDP path between a client and a server. Its end at the server can be moved or cut.
type relay struct {
	t      *testing.T
	front  net.PacketConn // the client sends to it
	server net.Addr
	wait   sync.WaitGroup

	mu      sync.Mutex
	client  net.Addr
	back    net.PacketConn
	forward atomic.Int64
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	to, err := net.ResolveUDPAddr("udp", server)
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{t: t, front: listenUDP(t), server: to}
	r.move()
	r.wait.Go(r.fromClient)
	t.Cleanup(func() {
		_ = r.front.Close()
		r.mu.Lock()
		_ = r.back.Close()
		r.mu.Unlock()
		r.wait.Wait()
	})
	return r
}

func listenUDP(t *testing.T) net.PacketConn {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// move gives the client another address, as the server sees it.
func (r *relay) move() {
	back := listenUDP(r.t)
	r.mu.Lock()
	old := r.back
	r.back = back
	r.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
	r.wait.Go(func() {
		var buf [2048]byte
		for {
			n, _, err := back.ReadFrom(buf[:])
			if err != nil {
				return
			}
			r.mu.Lock()
			client := r.client
			r.mu.Unlock()
			_, _ = r.front.WriteTo(buf[:n], client)
		}
	})
}

func (r *relay) fromClient() {
	var buf [2048]byte
	for {
		n, from, err := r.front.ReadFrom(buf[:])
		if err != nil {
			return
		}
		r.mu.Lock()
		r.client = from
		_, _ = r.back.WriteTo(buf[:n], r.server)
		r.forward.Add(1)
		r.mu.Unlock()
	}
}

// TestMoves: a client whose address changes in the middle of a block keeps its connection.
func TestMoves(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{Stripes: 1})
	want := s.store.fill("b", 8<<20)
	r := newRelay(t, s.address)
	p, err := s.pool.Peer(Target{Address: r.front.LocalAddr().String(), Lane: QUIC})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	started, moved := make(chan struct{}), make(chan struct{})
	go func() { defer close(moved); <-started; r.move() }()
	var buf []byte
	_, err = p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Alloc: func(_ Found, n int) ([]byte, error) {
		close(started)
		<-moved
		buf = make([]byte, n)
		return buf, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	same(t, "after the move", buf, want)
	if err := put(t.Context(), p, "c", want); err != nil {
		t.Error(err)
	}
	if stats := s.pool.Stats().QUIC; stats.Dials != 1 || stats.Retried != 0 {
		t.Errorf("%+v", stats)
	}
}

// kill ends the server without telling its peers.
func (s *site) kill() {
	_ = s.server.o.UDP[0].Close()
	_ = s.server.o.TCP.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.server.Close(ctx)
}

// TestPeerRestarts: the next operation after a restart works. It does not wait an hour for the old
// connection to time out.
func TestPeerRestarts(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		key := [32]byte{1, 2, 3}
		s := newSite(t, ServerOptions{ResetKey: &key}, PoolOptions{Tuning: Tuning{Idle: time.Hour}})
		want := s.store.fill("b", 3<<20)
		p := s.peer(l)
		for range 4 {
			if _, _, err := get(t.Context(), p, "b"); err != nil {
				t.Fatal(err)
			}
		}
		before := s.pool.Stats()
		s.kill()
		s.serve(ServerOptions{ResetKey: &key, Handler: s.store}, s.address)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		got, _, err := get(ctx, p, "b")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after the restart", got, want)
		after := s.pool.Stats()
		if after.QUIC.Retried+after.TLS.Retried == before.QUIC.Retried+before.TLS.Retried {
			t.Errorf("%+v", after)
		}
	})
}

// TestUnreachable: after a failure to dial, the peer is not dialled for a while.
func TestUnreachable(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		udp, tcp := sockets(t, "127.0.0.1:0")
		_ = tcp.Close()
		defer udp.Close()
		pool := newPool(t, PoolOptions{Tuning: Tuning{Idle: 200 * time.Millisecond}, Stripes: 1})
		p, err := pool.Peer(Target{Address: udp.LocalAddr().String(), Lane: l})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := p.Ping(t.Context()); !errors.Is(err, ErrUnreachable) {
				t.Error(err)
			}
		}
		if stats := pool.Stats(); stats.QUIC.DialErrors+stats.TLS.DialErrors == 0 ||
			stats.QUIC.Dials+stats.TLS.Dials != 0 {
			t.Errorf("%+v", stats)
		}
	})
}

// TestIdle: a connection that either side has closed because it was unused causes no error.
func TestIdle(t *testing.T) {
	for name, c := range map[string]struct {
		so ServerOptions
		po PoolOptions
	}{
		"server": {so: ServerOptions{Idle: 250 * time.Millisecond}}, "pool": {po: PoolOptions{Idle: time.Nanosecond}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, c.so, c.po)
			want := s.store.fill("b", 100_000)
			for i := range 4 {
				got, _, err := get(t.Context(), s.peer(TLS), "b")
				if err != nil {
					t.Fatal(err)
				}
				same(t, "pulled", got, want)
				if name == "server" {
					eventually(t, "the server closes it", func() bool { return s.server.Stats().Conns == 0 })
				}
				if dials := s.pool.Stats().TLS.Dials; dials != uint64(i+1) {
					t.Errorf("%d connections after %d pulls", dials, i+1)
				}
			}
		})
	}
}

// TestReceiveBudgetOfAFleet: however large the windows of some connections have grown, each host
// of a fleet has room for its connections.
func TestReceiveBudgetOfAFleet(t *testing.T) {
	for _, rtt := range []time.Duration{2 * time.Millisecond, 20 * time.Millisecond, time.Second} {
		for _, stripes := range []int{1, defaultStripes, 16} {
			tuning := Tuning{RTT: rtt}.withDefaults()
			b := newReceiveBudget(tuning, MaxHosts*stripes)
			var all []*quic.Conn
			for i := range MaxHosts * stripes {
				c := new(quic.Conn)
				if all = append(all, c); !b.admit(c) {
					t.Fatalf("rtt %s, %d stripes: connection %d is refused", rtt, stripes, i)
				}
				for grown := b.first; grown < tuning.window() && b.grow(c, grown); grown *= 2 {
				}
				if i == 8*stripes && b.windows[all[0]] < int64(tuning.window()/2) {
					t.Errorf("rtt %s, %d stripes: a window of %d bytes", rtt, stripes, b.windows[all[0]])
				}
			}
			if b.sum() > tuning.Receive {
				t.Errorf("%d bytes", b.sum())
			}
			for _, c := range all {
				b.drop(c)
			}
			if b.sum() != 0 || b.grow(all[0], 1) {
				t.Error("a window of a connection that has ended")
			}
		}
	}
}

// TestReceiveBudget: the windows of all connections stay within the budget, and are given back.
func TestReceiveBudget(t *testing.T) {
	s := newSite(t, ServerOptions{MaxPeers: 2, Stripes: 1, Tuning: Tuning{Receive: 5 << 20}}, PoolOptions{Stripes: 1})
	if err := s.peer(QUIC).Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	payload := randomBytes("b", 16<<20)
	if err := put(t.Context(), s.peer(QUIC), "b", payload); err != nil {
		t.Fatal(err)
	}
	if w := s.server.Stats().Windows; w < 5<<18 || w > 5<<19 {
		t.Errorf("windows of %d bytes", w)
	}
	other, err := newPool(t, PoolOptions{Stripes: 4}).Peer(Target{Address: s.address, Lane: QUIC})
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 9 {
		if other.Ping(t.Context()) != nil {
			refused++
		}
	}
	if refused == 0 || s.server.Stats().RefusedConns == 0 {
		t.Error("connections beyond the budget were served")
	}
	s.pool.Forget(Target{Address: s.address, Lane: QUIC})
	eventually(t, "windows are given back", func() bool { return s.server.Stats().Windows <= 3*5<<18 })
	eventually(t, "the pool gives its windows back", func() bool { return s.pool.Stats().Windows == 0 })
}
