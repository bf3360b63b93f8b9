package transport

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestWhatFailedOverALane: an operation that succeeds over another lane is a fallback. An operation
// that fails over all lanes is an error. A peer's refusal is neither.
func TestWhatFailedOverALane(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{ListenUDP: func() (net.PacketConn, error) {
		return nil, net.ErrClosed
	}})
	want := s.store.fill("b", 1000)
	p := s.peer(Auto)
	if err := p.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	// small requests are not counted
	if c := p.status().Carried; c[overQUIC].Fell != 0 || !strings.Contains(c[overQUIC].Error, "use of closed") {
		t.Errorf("QUIC after a ping: %+v", c[overQUIC])
	}
	p.choice.down = [2]time.Time{}
	got, _, err := get(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "over TLS", got, want)
	if _, _, err := get(t.Context(), p, "nobody's"); err == nil {
		t.Error("no miss")
	}
	c := p.status().Carried
	if c[overQUIC].Fell != 1 || c[overQUIC].Failed != 0 || !strings.Contains(c[overQUIC].Error, "use of closed") ||
		c[overQUIC].At.IsZero() {
		t.Errorf("QUIC: %+v", c[overQUIC])
	}
	if c[overTLS].Pulls != 1 || c[overTLS].Fell+c[overTLS].Failed != 0 || c[overTLS].Error != "" {
		t.Errorf("TLS: %+v", c[overTLS])
	}
	closeServer(t, s.server)
	if _, _, err := get(t.Context(), p, "b"); err == nil {
		t.Error("who answered?")
	}
	if c := p.status().Carried; c[overTLS].Failed+c[overQUIC].Failed != 1 || c[overTLS].Error == "" {
		t.Errorf("%+v", c)
	}
}

// TestClosingAnswersOnceMore: a server stops while a client's own key is read from it. The reader
// may then ask whether the key has changed, also on a forgotten peer. Nothing else begins.
func TestClosingAnswersOnceMore(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		s.server.confirm = time.Second
		s.store.fill("b", 1000)
		p := s.peer(l)
		held, err := p.Hold()
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := get(t.Context(), p, "b"); err != nil {
			t.Fatal(err)
		}
		s.pool.Forget(p.target)
		closed := make(chan struct{})
		go func() { defer close(closed); closeServer(t, s.server) }()
		eventually(t, "it closes", s.server.closing.Load)
		if _, err := held.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace,
			Alloc: func(Found, int) ([]byte, error) { return nil, nil }}); err == nil {
			t.Error("another block is begun")
		}
		var now [1]wire.Info
		if err := held.Stat(t.Context(), []block.Addr{addr("b")}, now[:]); err != nil || now[0].Length != 1000 {
			t.Error(now, err)
		}
		<-closed
		held.Release()
		eventually(t, "no peer is left", func() bool { return s.pool.Stats().Peers == 0 })
	})
}
