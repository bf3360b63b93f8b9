package transport

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// resume makes a session with the site's server and returns the configuration that resumes it.
func resume(t *testing.T, s *site, to string) (*quic.Transport, func(ctx context.Context) (*quic.Conn, error)) {
	t.Helper()
	config, err := clientTLS(identity(t, pkiDir, pki.KVCached), "", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	tr := &quic.Transport{Conn: listenUDP(t)}
	t.Cleanup(func() { _, _ = tr.Close(), tr.Conn.Close() })
	at, err := net.ResolveUDPAddr("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tr.Dial(t.Context(), at, config, nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a ticket comes", func() bool {
		k := config.ClientSessionCache.(*tickets)
		k.mu.Lock()
		defer k.mu.Unlock()
		return len(k.kept) > 0
	})
	_ = c.CloseWithError(0, "")
	return tr, func(ctx context.Context) (*quic.Conn, error) { return tr.DialEarly(ctx, at, config, nil) }
}

// TestReplayedWrite plays the first flight of a client, with a request in it, to the server from
// elsewhere. The server cannot know that it did not come from the client; it does short reads,
// which harm nobody, and refuses everything else.
func TestReplayedWrite(t *testing.T) {
	for _, c := range []struct {
		op   wire.Op
		size int
		want wire.Status
	}{
		{wire.Put, 100, wire.ReplayRefused}, {wire.Delete, 100, wire.ReplayRefused}, {wire.Announce, 100, wire.ReplayRefused},
		{wire.Get, 100, wire.OK}, {wire.Get, MaxEarly + 1, wire.ReplayRefused},
	} {
		t.Run(fmt.Sprintf("%s, %d bytes", c.op, c.size), func(t *testing.T) {
			s := newSite(t, ServerOptions{Allow: func(pki.Role, wire.Op) bool { return true }}, PoolOptions{})
			s.store.fill("b", c.size)
			r := newRelay(t, s.address)
			_, dial := resume(t, s, r.front.LocalAddr().String())
			r.mu.Lock()
			r.swallow = true
			r.mu.Unlock()
			conn, err := dial(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			st, err := conn.OpenStream()
			if err != nil {
				t.Fatal(err)
			}
			a := addr("b")
			f := wire.Frame{Version: wire.Version, Op: c.op, Digest: a.Digest, Namespace: []byte(namespace)}
			body := wire.AppendAddrs(nil, []block.Addr{a})
			switch c.op {
			case wire.Put:
				body = []byte("other bytes")
				f.Len, f.Total = uint64(len(body)), uint64(len(body))
			case wire.Announce:
				body = (&wire.Announcement{Host: "attacker"}).Append(nil)
			case wire.Get:
				body = nil
			}
			f.Body, f.CRC = uint64(len(body)), block.Sum(body)
			_, _ = st.Write(append(f.Append(nil), body...))
			_ = st.Close()
			attacker, played := listenUDP(t), 0
			defer attacker.Close()
			eventually(t, "the server has dealt with it", func() bool {
				r.mu.Lock()
				defer r.mu.Unlock()
				for ; played < len(r.recorded); played++ {
					_, _ = attacker.WriteTo(r.recorded[played], r.server)
				}
				stats := s.server.Stats()
				return stats.Ops[c.op] == 1 && stats.Statuses[c.want] == 1
			})
			stats := s.server.Stats()
			if stats.Statuses[c.want] != 1 || stats.Early != 1 {
				t.Errorf("%+v", stats)
			}
			if got := s.store.bytesOf("b"); len(got) != c.size || len(s.store.announced) != 0 {
				t.Error("the write was carried out")
			}
			_ = conn.CloseWithError(0, "")
		})
	}
}

// TestEarlyReads: a read goes along with the handshake of a resumed session, a write does not.
func TestEarlyReads(t *testing.T) {
	if underRace {
		t.Skip("quic-go races with itself in 0-RTT (issue 4303)")
	}
	s := newSite(t, ServerOptions{}, PoolOptions{EarlyReads: true, Stripes: 1})
	want, long := s.store.fill("b", MaxEarly), s.store.fill("long", MaxEarly+1)
	p := s.peer(QUIC)
	lane := p.lanes[overQUIC].(*streams).opener.(*quicLane)
	again := func() {
		config := lane.tls.ClientSessionCache.(*tickets)
		eventually(t, "a ticket comes", func() bool {
			config.mu.Lock()
			defer config.mu.Unlock()
			return len(config.kept) > 0
		})
		_ = lane.slots[0].conn.CloseWithError(0, "")
	}
	for i := range 5 {
		got, _, err := get(t.Context(), p, "b")
		if err != nil {
			t.Fatal(i, err)
		}
		same(t, "early", got, want)
		again()
		if err := put(t.Context(), p, "c", want); err != nil {
			t.Fatal(i, err)
		}
		again()
	}
	if stats := s.server.Stats(); stats.Early == 0 || stats.Statuses[wire.ReplayRefused] != 0 {
		t.Errorf("%+v", stats)
	}
	eventually(t, "a long block is refused, and asked for again after the handshake", func() bool {
		got, _, err := get(t.Context(), p, "long")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "long", got, long)
		again()
		return s.server.Stats().Statuses[wire.ReplayRefused] > 0
	})
}

// TestEarlyRejected: a server that has lost its ticket keys makes the client begin anew.
func TestEarlyRejected(t *testing.T) {
	if underRace {
		t.Skip("quic-go races with itself in 0-RTT (issue 4303)")
	}
	key := [32]byte{9}
	s := newSite(t, ServerOptions{ResetKey: &key}, PoolOptions{EarlyReads: true, Stripes: 1})
	want := s.store.fill("b", 300_000)
	p := s.peer(QUIC)
	for range 3 {
		got, _, err := get(t.Context(), p, "b")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "after a restart", got, want)
		s.kill()
		s.serve(ServerOptions{ResetKey: &key, Handler: s.store}, s.address)
	}
}
