// Package adminporttest checks the admin ports of daemons that ask for certificates.
package adminporttest

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
)

// Client returns a client that trusts the CA in dir and shows the certificate of a role of that
// fleet; "": none.
func Client(t *testing.T, dir string, role pki.Role) *http.Client {
	t.Helper()
	page, err := os.ReadFile(pki.FilesIn(dir, role).CA)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(page) {
		t.Fatalf("no CA in %s: %v", dir, err)
	}
	c := &tls.Config{RootCAs: roots}
	if role != "" {
		files := pki.FilesIn(dir, role)
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			t.Fatal(err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
}

// Readers checks who may read the admin port at an address (host:port), whose CA is in dir: probes
// without a certificate, and otherwise the roles ctl and monitor only.
func Readers(t *testing.T, address, dir string) {
	t.Helper()
	for _, c := range []struct {
		role         pki.Role
		method, path string
		passes       bool
	}{
		{"", "GET", "/healthz", true}, {"", "GET", "/readyz", true}, {"", "HEAD", "/readyz", true},
		{"", "GET", "/metrics", false}, {"", "POST", "/readyz", false}, {"", "GET", "/healthz/", false},
		{"", "GET", "/healthz%2F..%2Fmetrics", false}, {"", "GET", "/healthz/../metrics", false},
		{pki.Ctl, "GET", "/metrics", true}, {pki.Monitor, "GET", "/metrics", true},
		{pki.Monitor, "GET", "/debug/pprof/", true}, {pki.Router, "GET", "/metrics", false},
		{pki.Agent, "GET", "/metrics", false}, {pki.KVCached, "GET", "/debug/pprof/", false},
		{pki.Etcd, "GET", "/metrics", false}, {pki.Router, "GET", "/readyz", true},
	} {
		req, err := http.NewRequest(c.method, "https://"+address+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := Client(t, dir, c.role).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if passes := resp.StatusCode != http.StatusForbidden; passes != c.passes {
			t.Errorf("%s %s of the role %q: %d", c.method, c.path, c.role, resp.StatusCode)
		}
	}
}
