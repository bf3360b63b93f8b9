package fleet

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/health"
)

// TestWhyABackendNeverAnswered checks that the log and the view give the reason, and the log only
// once.
func TestWhyABackendNeverAnswered(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.NotFoundHandler())
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.StartTLS()
	garbage := speaker(t, "garbage\r\n\r\n")
	alert := speaker(t, "\x15\x03\x01\x00\x02\x02\x16")
	mute := speaker(t, "")
	closing := closes(t)
	t.Cleanup(func() { plain.Close(); secure.Close() })
	for name, c := range map[string]struct{ url, want string }{
		"https to a plain port":     {"https" + strings.TrimPrefix(plain.URL, "http"), "write http:// in its URL"},
		"a certificate not trusted": {secure.URL, "certificate signed by unknown authority"},
		"no socket":                 {"unix://" + filepath.Join(t.TempDir(), "none.sock"), "no such file"},
		"a TLS port that closes":    {"http://" + closing, "if it speaks TLS, write https:// in its URL"},
		"a plain port that closes":  {"https://" + closing, "if it speaks plain HTTP, write http:// in its URL"},
		"garbage":                   {garbage, "malformed HTTP"},
		"TLS to http":               {alert, "write https:// in its URL"},
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
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
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

// speaker answers every request with the same bytes. Without bytes speaker keeps the connection
// open in silence.
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
			// read the request first, or net/http does not accept the bytes as its answer
			_, _ = c.Read(make([]byte, 1))
			_, _ = c.Write([]byte(bytes))
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	return "http://" + l.Addr().String()
}

// closes closes each connection at its first bytes.
func closes(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 64<<10))
			c.Close()
		}
	}()
	return l.Addr().String()
}

// TestANodeWithoutAModelTakesNoRequests checks that an HTTP server without models does not count as
// healthy.
func TestANodeWithoutAModelTakesNoRequests(t *testing.T) {
	t.Parallel()
	var log said
	eng := newEngine(t, nil) // its model list answers 404
	o := fast(Backend{URL: eng.URL, ID: "n"})
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	f := run(t, o)
	eventually(t, f, "the problem", log.has("its /v1/models answers 404, so no model is known; give one with model="))
	eventually(t, f, "its health", func(s *Snapshot) bool { return s.Node("n").Health.State() == health.Healthy })
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

func TestRefusalOfAnHTTPSPort(t *testing.T) {
	t.Parallel()
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	secure.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	f := run(t, fast(Backend{URL: "http" + strings.TrimPrefix(secure.URL, "https"), ID: "n"}))
	eventually(t, f, "the problem", func(s *Snapshot) bool {
		return len(s.Problems) == 1 && strings.Contains(s.Problems[0].Reason,
			"answers 400 (it speaks TLS: write https:// in its URL)")
	})
}
