package transport

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestHostShare: a host that announces bodies and does not send them takes only its share of the
// bytes in flight.
func TestHostShare(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		const size = 1 << 20
		s := newSite(t, ServerOptions{MaxInFlight: 16 * size}, PoolOptions{TLSConns: 32, Stall: time.Minute})
		p := s.peer(l)
		for i := range 16 {
			x := raw(t, p)
			defer x.release(errDone)
			head := wire.Frame{Version: wire.Version, Op: wire.Put, Request: uint64(i + 1),
				Namespace: []byte(namespace), Len: size, Total: size, Body: size}
			if _, err := x.Write(head.Append(nil)); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "all heads have come", func() bool {
			return s.server.Stats().InFlight+size*int64(s.server.Stats().Statuses[wire.Busy]) >= 16*size
		})
		if n := s.server.Stats().InFlight; n != 4*size {
			t.Errorf("one host has %d bytes of %d in flight", n, 16*size)
		}
		other := newPool(t, PoolOptions{
			ListenUDP: func() (net.PacketConn, error) { return net.ListenPacket("udp", "127.0.0.2:0") },
			DialTCP: func(ctx context.Context, address string) (net.Conn, error) {
				return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}).DialContext(ctx, "tcp",
					address)
			},
		})
		q, err := other.Peer(Target{Address: s.address, Lane: l})
		if err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), q, "b", make([]byte, 8*size)); err != nil {
			t.Error("another host:", err)
		}
	})
}
