package shared

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/freeport"
)

// TestPassword checks that the password comes from its file, also after it has changed.
func TestPassword(t *testing.T) {
	s := startServer(t, "--requirepass", "right")
	file := filepath.Join(t.TempDir(), "password")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong\n")
	l, _ := limiter(t, Options{Addresses: []string{s.At}, PasswordFile: file, Exact: true, OnFailure: Closed})
	k := subject(l, "acme", "key")
	wait(t, "Redis refuses the password", func() bool { return l.Stats().Away })
	reserve(t, l, Unavailable, k.of(rpm, 10, 1))
	for _, o := range []Options{l.o, {Addresses: l.o.Addresses}} { // a wrong password, and none
		o = o.withDefaults()
		o.Timeout = 2 * time.Second
		db, err := o.dial()
		if err != nil {
			t.Fatal(err)
		}
		if err := o.explain(l.scripts.runAll(t.Context(), db, []*call{l.scripts.newHear("x")})); err == nil ||
			!strings.Contains(err.Error(), "check ratelimit.password_file") {
			t.Error(err)
		}
		db.Close()
	}
	write("right\n")
	wait(t, "Redis takes the password", func() bool { return !l.Stats().Away })
	reserve(t, l, Admitted, k.of(rpm, 10, 1))
	for _, bad := range []string{filepath.Join(t.TempDir(), "none"), ""} {
		if bad == "" {
			bad = file
			write(strings.Repeat("x", maxPassword+1))
		}
		_, err := New(Options{Addresses: []string{s.At}, Master: "m", SentinelPasswordFile: bad},
			slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), bad) {
			t.Error(err)
		}
	}
}

// TestTLS checks that Redis is reached by TLS, and only if its certificate is right.
func TestTLS(t *testing.T) {
	at := freeport.Address(t)
	_, port, _ := net.SplitHostPort(at)
	dir := t.TempDir()
	cert, key, roots := certificate(t, dir)
	startServer(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-auth-clients", "no",
		"--tls-ca-cert-file", cert)
	good, _ := limiter(t, Options{Addresses: []string{at}, TLS: trusting(roots), OnFailure: Closed})
	reserve(t, good, Admitted, subject(good, "acme", "key").of(rpm, 10, 1))
	bad, _ := limiter(t, Options{Addresses: []string{at}, TLS: trusting(x509.NewCertPool()), OnFailure: Closed})
	wait(t, "it is not trusted", func() bool { return bad.Stats().Away })
	reserve(t, bad, Unavailable, subject(bad, "acme", "key").of(rpm, 10, 1))
}

// trusting returns a TLS of Options that trusts roots.
func trusting(roots *x509.CertPool) func(host string) *tls.Config {
	return func(host string) *tls.Config { return &tls.Config{ServerName: host, RootCAs: roots} }
}

// certificate writes a certificate for 127.0.0.1 and its key.
func certificate(t *testing.T, dir string) (cert, key string, roots *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", pkcs8), roots
}

// TestRunEndsWithoutRedis checks that a router ends in time though Redis does not answer, and that
// requests after its end do not wait.
func TestRunEndsWithoutRedis(t *testing.T) {
	s := startServer(t)
	l, end := limiter(t, Options{Addresses: []string{s.At}, OnFailure: Closed, Timeout: 5 * time.Second})
	k := subject(l, "acme", "key")
	warm(t, l, k.of(tpd, 1e6, 100))
	s.Pause()
	end()
	s.Proceed()
	reserve(t, l, Unavailable, k.of(tpd, 1e6, 1e6))
}

// TestSaysWhatHappens checks that the log says what becomes of requests while Redis is away.
func TestSaysWhatHappens(t *testing.T) {
	for on, want := range map[string]string{
		Local: "holds requests to its part", Open: "by its own count only", Closed: "get 503",
	} {
		var log bytes.Buffer
		l, err := New(Options{Addresses: []string{"127.0.0.1:1"}, OnFailure: on},
			slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		l.fail(errors.New("gone"))
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s: %s", on, log.String())
		}
		l.db.Close()
	}
}
