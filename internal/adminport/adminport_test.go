package adminport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/audit/audittest"
	"github.com/cognitora/dataplane/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGuard asks a port that changes nothing over real connections.
func TestGuard(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(dir, pki.Agent)
	port := TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	conf, err := port.Config()
	if err != nil {
		t.Fatal(err)
	}
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "reached") })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(port.Guard(l.Addr().String(), h), conf, slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	adminporttest.Readers(t, l.Addr().String(), dir)
	if err := s.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		port TLS
		want string
	}{
		{TLS{}, ""}, {TLS{Cert: "c", Key: "k"}, ""}, {TLS{Cert: "c", Key: "k", ClientCA: "a"}, ""},
		{TLS{Cert: "c"}, "admin_tls.cert: goes together"}, {TLS{Key: "k"}, "admin_tls.cert: goes together"},
		{TLS{ClientCA: "a"}, "admin_tls.client_ca: needs"},
	} {
		err := c.port.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.port, err)
		}
	}
	absent := TLS{Cert: "/nowhere/c", Key: "/nowhere/k"}
	if _, err := absent.Config(); err == nil || !strings.Contains(err.Error(), "admin_tls.cert: ") {
		t.Errorf("absent files: %v", err)
	}
	if err := absent.Examine(); err == nil || !strings.Contains(err.Error(), "admin_tls.key: ") {
		t.Errorf("absent files: %v", err)
	}
}

// TestWithoutCertificates checks that a port without client_ca asks nobody, and that on loopback it
// refuses the names of other sites.
func TestWithoutCertificates(t *testing.T) {
	var port TLS
	for _, c := range []struct {
		address, host string
		status        int
	}{
		{"127.0.0.1:1", "127.0.0.1:1", 200}, {"127.0.0.1:1", "localhost:9", 200}, {"[::1]:1", "[::1]", 200},
		{"localhost:1", "LOCALHOST.", 200}, {"127.0.0.1:1", "evil.example:1", 403}, {"[::1]:1", "evil.example", 403},
		{"127.0.0.1:1", "127.0.0.1.evil.example", 403}, {"0.0.0.0:1", "router.example", 200},
		{"unix:///run/x", "router", 200},
	} {
		answer := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "/x", nil)
		req.Host = c.host
		port.Guard(c.address, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(answer, req)
		if answer.Code != c.status {
			t.Errorf("%s at %s: %d, want %d", c.host, c.address, answer.Code, c.status)
		}
	}
	if conf, err := port.Config(); conf != nil || err != nil {
		t.Errorf("%v, %v", conf, err)
	}
}

// TestNamesOfOtherSites checks that a port on loopback answers the probes of any Host, and that the
// line of a refusal says why and has no text of the client's choice.
func TestNamesOfOtherSites(t *testing.T) {
	name := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.New(audit.Options{To: name, RefusalsPerSecond: 9})
	if err != nil {
		t.Fatal(err)
	}
	h := Audited(log, Changes{}, (&TLS{}).Guard("127.0.0.1:1", http.NotFoundHandler()))
	for asked, want := range map[string]int{"GET /healthz": 404, "HEAD /readyz": 404, "POST /healthz": 403,
		"GET /chosen": 403} {
		answer := httptest.NewRecorder()
		method, path, _ := strings.Cut(asked, " ")
		req := httptest.NewRequest(method, path, nil)
		req.Host = "evil.example"
		if h.ServeHTTP(answer, req); answer.Code != want {
			t.Errorf("%s: %d, want %d", asked, answer.Code, want)
		}
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	lines := audittest.Lines(t, name)
	if len(lines) != 2 {
		t.Fatalf("%+v", lines)
	}
	for _, l := range lines {
		if l.Reason != "admin_403" || !strings.Contains(l.Detail, "localhost") ||
			l.Asked != "GET" && l.Asked != "POST" {
			t.Errorf("%+v", l)
		}
	}
}
