package gateway

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
)

// TestConnectionsBeyondTheLimit checks that a connection beyond the limit gets the refusal, unless
// it waits for a handshake.
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
			} else if body, err := io.ReadAll(resp.Body); err != nil || string(body) != refusalBody ||
				resp.StatusCode != 503 {
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

// closing calls a function in Close.
type closing struct {
	net.Conn
	call func()
}

func (c closing) Close() error {
	c.call()
	return nil
}

// TestCountedUntilClosed checks that a connection with a slow Close counts until Close returns, and
// is subtracted once.
func TestCountedUntilClosed(t *testing.T) {
	l := &listener{open: &counter{}, over: new(atomic.Bool), empty: make(chan struct{}, 1)}
	l.over.Store(true)
	if !l.open.take(1) {
		t.Fatal("full")
	}
	var within []int64
	c := &counted{Conn: closing{call: func() { within = append(within, l.open.n.Load()) }}, listener: l}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.open.n.Load(); !slices.Equal(within, []int64{1, 0}) || n != 0 || len(l.empty) != 1 {
		t.Errorf("%d open while it is closed twice, %d after it, told %d times", within, n, len(l.empty))
	}
}
