package gateway

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"testing"
)

// TestConnectionsBeyondTheLimit are told so, unless they wait for a handshake.
func TestConnectionsBeyondTheLimit(t *testing.T) {
	for name, config := range map[string]*tls.Config{"plain": nil, "TLS": {}} {
		t.Run(name, func(t *testing.T) {
			g, l := bare(t), listen(t)
			g.limits.MaxConnections = 0
			served := make(chan error, 1)
			go func() { served <- g.Serve(l, config) }()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if config != nil {
				if b, err := io.ReadAll(c); err != nil || len(b) > 0 {
					t.Errorf("%q %v", b, err)
				}
			} else if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil {
				t.Error(err)
			} else if body, err := io.ReadAll(resp.Body); err != nil || string(body) != refusalBody || resp.StatusCode != 503 {
				t.Errorf("%d %q %v", resp.StatusCode, body, err)
			}
			if err := g.Shutdown(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
	}
}
