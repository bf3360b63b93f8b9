package transport

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
)

// TestProtocolIsDemanded: over TLS, a peer with the right certificate is refused if it names
// another protocol, or none.
func TestProtocolIsDemanded(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	s.store.fill("b", 10)
	config, err := clientTLS(identity(t, pkiDir, pki.KVCached), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, protocols := range [][]string{nil, {"h2"}} {
		config := config.Clone()
		config.NextProtos = protocols
		if c, err := tls.Dial("tcp", s.address, config); err == nil {
			if n, err := io.Copy(io.Discard, c); n != 0 {
				t.Error(protocols, n, err)
			}
			_ = c.Close()
		} else if protocols == nil {
			t.Error("the handshake failed already: ", err)
		}
	}
	eventually(t, "both are counted", func() bool { return s.server.Stats().Handshakes == 2 })

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute := identity(t, pkiDir, pki.KVCached).Mutual()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		raw, err := l.Accept()
		if err != nil {
			return
		}
		c := tls.Server(raw, mute)
		if n, err := io.Copy(io.Discard, c); n != 0 {
			t.Error("the client sent", n, err)
		}
		_ = c.Close()
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	p, err := s.pool.Peer(Target{Address: l.Addr().String(), Lane: TLS})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := get(t.Context(), p, "b"); !errors.Is(err, ErrHandshake) {
		t.Error(err)
	}
}
