package health

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// TestPlainErrors checks the errors of net/http about bytes that a server sends before any request.
func TestPlainErrors(t *testing.T) {
	t.Parallel()
	speaks := func(c *net.TCPConn) error { _, err := c.Write([]byte("SSH-2.0-x\r\n")); return err }
	for name, c := range map[string]struct {
		speak func(c *net.TCPConn) error
		want  string
	}{
		"speaks": {speaks, "it speaks before it is asked"},
		"ends":   {(*net.TCPConn).CloseWrite, "server closed idle connection"},
		"resets": {func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) }, "connection reset by peer"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := plainError(firstHeard(t, c.speak))
			if err == nil || !strings.Contains(err.Error(), c.want) ||
				strings.Contains(err.Error(), "127.0.0.1:0/secret") {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// ended is a connection that reports when net/http has closed it.
type ended struct {
	net.Conn
	closed func()
}

func (c *ended) Close() error { defer c.closed(); return c.Conn.Close() }

// firstHeard returns the error of a request to a server that writes first. speak writes the
// server's bytes.
func firstHeard(t *testing.T, speak func(*net.TCPConn) error) error {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spoken, dialed := make(chan error, 1), make(chan struct{})
	go func() {
		c, err := l.Accept()
		if err == nil {
			t.Cleanup(func() { _ = c.Close() })
			<-dialed // otherwise a reset becomes an error of the dial
			err = speak(c.(*net.TCPConn))
		}
		spoken <- err
	}()
	closed := make(chan struct{})
	transport := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, l.Addr().String())
		close(dialed)
		return &ended{c, sync.OnceFunc(func() { close(closed) })}, err
	}}
	defer transport.CloseIdleConnections()
	ctx := httptrace.WithClientTrace(t.Context(),
		&httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { <-closed }})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:0/secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err == nil {
		_ = resp.Body.Close()
	}
	if err := <-spoken; err != nil {
		t.Fatal(err)
	}
	return &url.Error{Op: "Get", URL: req.URL.String(), Err: err}
}
