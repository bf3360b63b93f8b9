package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// tallied counts the connections that serve gets.
func tallied(n *atomic.Int32, serve func(net.Conn, *bufio.Reader)) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		n.Add(1)
		serve(c, r)
	}
}

func wantStats(t *testing.T, p *Pool, idle, open int) {
	t.Helper()
	if i, o := p.Stats(); i != idle || o != open {
		t.Fatalf("%d idle of %d connections, want %d of %d", i, o, idle, open)
	}
}

// TestWarm: connections that Warm has opened carry the next requests, with and without TLS.
func TestWarm(t *testing.T) {
	config, roots := certificate(t)
	for name, over := range map[string]*tls.Config{"plain": nil, "TLS": {RootCAs: roots}} {
		t.Run(name, func(t *testing.T) {
			var served atomic.Int32
			serve := tallied(&served, answering(okResponse))
			if over != nil {
				serve = secured(config, serve)
			}
			target := rawServer(t, "tcp", serve)
			target.TLS = over
			p := newPool(t, target)
			if n, err := p.Warm(context.Background(), 3); n != 3 || err != nil {
				t.Fatal(n, err)
			}
			wantStats(t, p, 3, 3)
			held := hold(t, p, 3)
			wantStats(t, p, 0, 3)
			if n := served.Load(); n != 3 {
				t.Errorf("3 requests over %d connections", n)
			}
			if n, err := p.Warm(context.Background(), 2); n != 2 || err != nil {
				t.Error(n, err)
			}
			for _, e := range held {
				e.Close()
			}
			wantStats(t, p, 5, 5)
			if n, err := p.Warm(context.Background(), 5); n != 0 || err != nil {
				t.Error("enough are there", n, err)
			}
		})
	}
}

// TestWarmIsBounded: Warm is bounded by the pool's limits, and ends with the pool.
func TestWarmIsBounded(t *testing.T) {
	target := rawServer(t, "tcp", answering(okResponse))
	for _, o := range []PoolOptions{{MaxIdle: 2}, {MaxConnections: 2}} {
		p := NewPool(target, o)
		if n, err := p.Warm(context.Background(), 9); n != 2 || err != nil {
			t.Error(n, err)
		}
		wantStats(t, p, 2, 2)
		p.Close()
		if n, err := p.Warm(context.Background(), 9); n != 0 || err != nil {
			t.Error("closed", n, err)
		}
		wantStats(t, p, 0, 0)
	}
}

// TestWarmReplaces: Warm replaces connections that the server has closed. A request survives a
// connection that the server closes later.
func TestWarmReplaces(t *testing.T) {
	closing := make(chan net.Conn, 16)
	target := rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		closing <- c
		answering(okResponse)(c, r)
	})
	p := newPool(t, target)
	if n, err := p.Warm(context.Background(), 2); n != 2 || err != nil {
		t.Fatal(n, err)
	}
	(<-closing).Close()
	(<-closing).Close()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	made := 0
	for deadline := time.Now().Add(soon); made < 2; <-tick.C {
		n, err := p.Warm(context.Background(), 2)
		if made += n; err != nil || time.Now().After(deadline) {
			t.Fatalf("%d of 2 were replaced: %v", made, err)
		}
	}
	(<-closing).Close()
	(<-closing).Close()
	if status, body, err := roundTrip(p, post("{}")); status != 200 || body != "hello" || err != nil {
		t.Errorf("%d %q %v", status, body, err)
	}
}

// TestWarmFails: a failed connection leaves nothing behind.
func TestWarmFails(t *testing.T) {
	config, _ := certificate(t)
	distrusted := rawServer(t, "tcp", secured(config, answering(okResponse)))
	distrusted.TLS = &tls.Config{}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for name, c := range map[string]struct {
		target Target
		ctx    context.Context
	}{
		"nobody listens": {Target{Network: "unix", Addr: t.TempDir() + "/none"}, context.Background()},
		"not trusted":    {distrusted, context.Background()},
		"given up":       {rawServer(t, "tcp", answering(okResponse)), ctx},
	} {
		p := newPool(t, c.target)
		if n, err := p.Warm(c.ctx, 3); n != 0 || err == nil {
			t.Errorf("%s: %d, %v", name, n, err)
		}
		wantStats(t, p, 0, 0)
	}
}
