package transport

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quic-go/quic-go/testutils/simnet"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// lossy is a network that loses some packets.
type lossy struct {
	simnet.PerfectRouter
	mu   sync.Mutex
	rand *rand.Rand
	loss float64
	lost atomic.Int64
}

func (l *lossy) SendPacket(p simnet.Packet) error {
	l.mu.Lock()
	lose := l.rand.Float64() < l.loss
	l.mu.Unlock()
	if lose {
		l.lost.Add(1)
		return nil
	}
	return l.PerfectRouter.SendPacket(p)
}

// simulated returns a site in virtual time. The server is at 1.0.0.1, the pool at 1.0.0.2, with
// round trips of 20 ms and 1 % loss.
func simulated(t *testing.T, so ServerOptions, po PoolOptions) (*site, *lossy) {
	t.Helper()
	dir, seed := t.TempDir(), uint64(42)
	t.Log("seed", seed)
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil { // new certificates, because it is the year 2000
		t.Fatal(err)
	}
	router := &lossy{rand: rand.New(rand.NewPCG(seed, 0)), loss: 0.01}
	network := &simnet.Simnet{Router: router}
	end := func(ip string, port int) net.PacketConn {
		return network.NewEndpoint(&net.UDPAddr{IP: net.ParseIP(ip).To4(), Port: port},
			simnet.NodeBiDiLinkSettings{Downlink: simnet.LinkSettings{MTU: 1500},
				Uplink: simnet.LinkSettings{MTU: 1500}, Latency: 10 * time.Millisecond})
	}
	s := &site{t: t, store: newMapStore(), address: "1.0.0.1:7072"}
	sockets := []net.PacketConn{end("1.0.0.2", 1), end("1.0.0.2", 2), end("1.0.0.2", 3), end("1.0.0.2", 4)}
	if so.Handler == nil {
		so.Handler = s.store
	}
	if so.Identity = identity(t, dir, pki.KVCached); so.Logger == nil {
		so.Logger = quiet()
	}
	so.UDP = []net.PacketConn{end("1.0.0.1", 7072)}
	if err := network.Start(); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.server, err = NewServer(so); err != nil {
		t.Fatal(err)
	}
	var next atomic.Int64
	po.Identity, po.Logger = so.Identity, quiet()
	po.ListenUDP = func() (net.PacketConn, error) { return sockets[next.Add(1)-1], nil }
	if s.pool, err = NewPool(po); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.pool.Close()
		closeServer(t, s.server)
		for _, c := range sockets {
			_ = c.Close()
		}
		_ = network.Close()
	})
	return s, router
}

// TestLossAndDelay pulls and puts over a bad path. Every byte arrives, and the speed is the same in
// each run.
func TestLossAndDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, network := simulated(t, ServerOptions{}, PoolOptions{Tuning: Tuning{RTT: 20 * time.Millisecond}})
		p := s.peer(QUIC)
		want := s.store.fill("b", 4<<20)
		for range 4 {
			start := time.Now()
			got, _, err := get(t.Context(), p, "b")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "pulled", got, want)
			d := time.Since(start)
			t.Logf("4 MiB in %s of virtual time, %.1f MB/s", d.Round(time.Millisecond), 4.194/d.Seconds())
		}
		if err := put(t.Context(), p, "c", want); err != nil {
			t.Fatal(err)
		}
		same(t, "put", s.store.bytesOf("c"), want)
		if network.lost.Load() == 0 {
			t.Error("nothing was lost")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if _, _, err := get(ctx, p, "b"); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, wire.Deadline) {
			t.Error("a pull that takes longer than it may:", err)
		}
		synctest.Wait()
		time.Sleep(time.Second) // of virtual time
		if s.store.holds() != 0 || s.server.Stats().InFlight != 0 {
			t.Error("the server holds what nobody waits for")
		}
	})
}

// TestCaps: both sides keep their caps, to the millisecond of virtual time.
func TestCaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBandwidth(1000_000, 0)
		start := time.Now()
		var both sync.WaitGroup
		var took [2]time.Duration
		for i := range took {
			both.Go(func() {
				for range 30 {
					if err := b.wait(t.Context(), inward, 20_000); err != nil {
						t.Error(err)
					}
				}
				took[i] = time.Since(start)
			})
		}
		both.Wait()
		// 1.2 MB at 1 MB/s, of which the first 50 ms are free
		if last := max(took[0], took[1]); last < 1140*time.Millisecond || last > 1180*time.Millisecond {
			t.Error("both took", took)
		}
		start = time.Now()
		if err := b.wait(t.Context(), outward, 1<<30); err != nil || time.Since(start) != 0 {
			t.Error("outward is not capped")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.wait(ctx, inward, 1<<30); !errors.Is(err, context.DeadlineExceeded) ||
			time.Since(start) != time.Second {
			t.Error("waits for longer than it may:", err)
		}
		var none *Bandwidth
		if !none.take(inward, 1<<40) || none.step(5) != 5 || NewBandwidth(0, 0).wait(ctx, outward, 1<<40) != nil {
			t.Error("no caps cost something")
		}
	})
}

// TestCappedPull: a cap of either side limits the whole pull.
func TestCappedPull(t *testing.T) {
	for name, c := range map[string]struct{ server, pool *Bandwidth }{
		"server": {server: NewBandwidth(0, 1<<20)}, "pool": {pool: NewBandwidth(1<<20, 0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, _ := simulated(t, ServerOptions{Bandwidth: c.server},
					PoolOptions{Bandwidth: c.pool})
				want := s.store.fill("b", 3<<20)
				start := time.Now()
				got, _, err := get(t.Context(), s.peer(QUIC), "b")
				if err != nil {
					t.Fatal(err)
				}
				same(t, "pulled", got, want)
				if d := time.Since(start); d < 2900*time.Millisecond || d > 5*time.Second {
					t.Error("3 MiB at 1 MiB/s took", d)
				}
			})
		})
	}
}

// TestCertificateReloads: a server shows the certificate that is in its files now, and a client
// checks against the CA that is in its files now.
func TestCertificateReloads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
			t.Fatal(err)
		}
		id := identity(t, dir, pki.KVCached)
		config := id.Mutual(wire.ALPN)
		before, err := config.GetConfigForClient(nil)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := config.GetConfigForClient(nil); again != before || again.NextProtos[0] != wire.ALPN {
			t.Error("tickets do not outlive a handshake")
		}
		time.Sleep(time.Minute) // of virtual time
		if err := pki.Bootstrap(dir, pki.Options{Force: true}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pki.CheckEvery + time.Millisecond) // after the check of a timer
		after, err := config.GetConfigForClient(nil)
		if err != nil || after == before || after.NextProtos[0] != wire.ALPN {
			t.Error("the old certificate is shown", err)
		}
	})
}
