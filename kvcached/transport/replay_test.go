package transport

import (
	"crypto/tls"
	"net"
	"testing"

	"github.com/quic-go/quic-go"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestNoEarlyData: a client that resumes a session cannot send before the handshake is done, so
// nobody can replay its bytes.
func TestNoEarlyData(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	config, err := clientTLS(identity(t, pkiDir, pki.KVCached), "")
	if err != nil {
		t.Fatal(err)
	}
	config.ServerName, config.ClientSessionCache = "127.0.0.1", tls.NewLRUClientSessionCache(1)
	tr := &quic.Transport{Conn: listenUDP(t)}
	t.Cleanup(func() { _, _ = tr.Close(), tr.Conn.Close() })
	at, err := net.ResolveUDPAddr("udp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "a session is resumed", func() bool {
		c, err := tr.DialEarly(t.Context(), at, config, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.CloseWithError(0, "")
		<-c.HandshakeComplete()
		state := c.ConnectionState()
		if state.Used0RTT {
			t.Fatal("the server has taken data before the handshake was done")
		}
		_, _ = c.OpenStream()
		return state.TLS.DidResume
	})
}
