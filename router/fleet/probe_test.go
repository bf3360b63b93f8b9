package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestWhyABackendNeverAnswered: the log says it once, in words that tell what to mend, and so does
// the view.
func TestWhyABackendNeverAnswered(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	garbage := speaker(t, "garbage\r\n\r\n")
	alert := speaker(t, "\x15\x03\x01\x00\x02\x02\x16")
	mute := speaker(t, "")
	t.Cleanup(func() { plain.Close(); secure.Close() })
	for name, c := range map[string]struct{ url, want string }{
		"https to a plain port":     {"https" + strings.TrimPrefix(plain.URL, "http"), "server gave HTTP response to HTTPS client"},
		"a certificate not trusted": {secure.URL, "certificate signed by unknown authority"},
		"no socket":                 {"unix://" + filepath.Join(t.TempDir(), "none.sock"), "no such file"},
		"garbage":                   {garbage, "malformed HTTP"},
		"TLS to http":               {alert, "is its URL https://?"},
		"mute":                      {mute, "no answer in time"},
		"nobody":                    {"http://127.0.0.1:1", "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log said
			o := fast(Backend{URL: c.url, ID: "n"})
			if o.ProbeTimeout = 10 * time.Second; name == "mute" {
				o.ProbeTimeout = 100 * time.Millisecond
			}
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			f := run(t, o)
			const line = `level=WARN msg="node has not answered yet, so it takes no requests" node=n`
			eventually(t, f, "the line", log.has(line))
			eventually(t, f, "the view", func(s *Snapshot) bool {
				v := s.View(time.Now()).Nodes
				return len(v) == 1 && strings.Contains(v[0].LastError, c.want) && v[0].State == "unproven"
			})
			log.mu.Lock()
			defer log.mu.Unlock()
			if text := log.b.String(); strings.Count(text, "has not answered yet") != 1 ||
				!strings.Contains(text, c.want) {
				t.Errorf("want one line with %q:\n%s", c.want, text)
			}
		})
	}
}

// speaker answers every request with the same bytes, or with none and holds its connection.
func speaker(t *testing.T, bytes string) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		var held []net.Conn
		defer func() {
			for _, c := range held {
				c.Close()
			}
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c)
			if bytes == "" {
				continue
			}
			_, _ = c.Read(make([]byte, 1)) // the request first, or net/http does not take the bytes for its answer
			_, _ = c.Write([]byte(bytes))
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	return "http://" + l.Addr().String()
}

// TestANodeWithoutAModelTakesNoRequests: an HTTP server that is no engine is not called well.
func TestANodeWithoutAModelTakesNoRequests(t *testing.T) {
	t.Parallel()
	var log said
	eng := newEngine(t, nil) // 404 for its models
	o := fast(Backend{URL: eng.URL, ID: "n"})
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	f := run(t, o)
	eventually(t, f, "the problem", log.has("its /v1/models answers 404, so no model is known; give one with model="))
	eventually(t, f, "its health", func(s *Snapshot) bool { return s.Node("n").State() == Healthy })
	v := f.Load().View(time.Now()).Nodes[0]
	if v.State != "no model" || v.Eligible || !strings.Contains(v.Reason, "model=") {
		t.Errorf("view %+v", v)
	}
	if log.has("node takes requests")(nil) {
		t.Errorf("it is said to take requests:\n%s", log.b.String())
	}
	eng.set(func(e *engine) { e.models = []string{"m"} })
	eventually(t, f, "its model", serves("m", 1))
	eventually(t, f, "it is told", log.has(`msg="node takes requests" node=n was="it names no model"`))
	if v := f.Load().View(time.Now()).Nodes[0]; v.State != "healthy" || !v.Eligible {
		t.Errorf("view %+v", v)
	}
}

// TestPlainErrors: what net/http says in words of its own of a connection of which something is
// heard before anything is asked.
func TestPlainErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		speak func(c *net.TCPConn) error
		want  string
	}{
		"speaks": {func(c *net.TCPConn) error { _, err := c.Write([]byte("SSH-2.0-x\r\n")); return err }, "it speaks before it is asked"},
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

// ended is a connection that tells when net/http has closed it.
type ended struct {
	net.Conn
	closed func()
}

func (c *ended) Close() error { defer c.closed(); return c.Conn.Close() }

// firstHeard is the error of a request over a connection of which net/http has heard what speak
// does before it asks.
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
			<-dialed // a reset is an error of the dial otherwise
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

func TestRefusalOfAnHTTPSPort(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	f := run(t, fast(Backend{URL: "http" + strings.TrimPrefix(secure.URL, "https"), ID: "n"}))
	eventually(t, f, "the problem", func(s *Snapshot) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Reason, "answers 400 (is its URL https://?)")
	})
}
