package adminport

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
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
	s := New(port.Guard(h), conf, slog.New(slog.DiscardHandler))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// TestWithoutCertificates checks that a port without client_ca asks nobody.
func TestWithoutCertificates(t *testing.T) {
	var port TLS
	h := http.NewServeMux()
	if got := port.Guard(h); got != http.Handler(h) {
		t.Error("requests are guarded")
	}
	if conf, err := port.Config(); conf != nil || err != nil {
		t.Errorf("%v, %v", conf, err)
	}
}
