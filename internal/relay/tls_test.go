package relay

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// certificate returns a temporary certificate for 127.0.0.1, and the pool that trusts it.
func certificate(t testing.TB) (*tls.Config, *x509.CertPool) {
	t.Helper()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.TLS.Clone(), roots
}

// secured wraps serve in TLS.
func secured(config *tls.Config, serve func(net.Conn, *bufio.Reader)) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, _ *bufio.Reader) {
		secure := tls.Server(c, config)
		defer secure.Close()
		if secure.Handshake() == nil {
			serve(secure, bufio.NewReader(secure))
		}
	}
}

func TestTLSUpstream(t *testing.T) {
	config, roots := certificate(t)
	target := rawServer(t, "tcp", secured(config, answering(okResponse)))
	target.TLS = &tls.Config{RootCAs: roots}
	p := newPool(t, target)
	for range 3 {
		req := post(strings.Repeat("x", 100_000))
		if status, body, err := roundTrip(p, req); status != 200 || body != "hello" || err != nil {
			t.Fatalf("%d %q %v", status, body, err)
		}
	}
	if idle, open := p.Stats(); idle != 1 || open != 1 {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
}

// TestStaleTLS: the server closes TLS after each answer.
func TestStaleTLS(t *testing.T) {
	config, roots := certificate(t)
	target := rawServer(t, "tcp", secured(config, once(okResponse)))
	target.TLS = &tls.Config{RootCAs: roots}
	p := newPool(t, target)
	for range 3 {
		if status, body, err := roundTrip(p, post("{}")); status != 200 || body != "hello" || err != nil {
			t.Fatalf("%d %q %v", status, body, err)
		}
	}
}

func TestTLSFailures(t *testing.T) {
	config, _ := certificate(t)
	for name, serve := range map[string]func(net.Conn, *bufio.Reader){
		"unknown authority": secured(config, answering(okResponse)),
		"not TLS": func(c net.Conn, _ *bufio.Reader) {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		},
		"client refused": secured(&tls.Config{Certificates: config.Certificates,
			ClientAuth: tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12}, answering(okResponse)),
	} {
		target := rawServer(t, "tcp", serve)
		target.TLS = &tls.Config{InsecureSkipVerify: name == "client refused"}
		_, _, err := roundTrip(newPool(t, target), post("{}"))
		wantError(t, err, PhaseDial, KindTLS)
	}
}

// TestHandshakeHangs: the handshake counts as dialing.
func TestHandshakeHangs(t *testing.T) {
	release := make(chan struct{})
	target := rawServer(t, "tcp", func(net.Conn, *bufio.Reader) { <-release })
	target.TLS = &tls.Config{InsecureSkipVerify: true}
	p := NewPool(target, PoolOptions{DialTimeout: 50 * time.Millisecond})
	defer p.Close()
	_, _, err := roundTrip(p, post("{}"))
	close(release)
	wantError(t, err, PhaseDial, KindTimeout)
	if idle, open := p.Stats(); idle+open != 0 {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
}
