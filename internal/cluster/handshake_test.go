package cluster

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/cognitora/dataplane/internal/pki"
)

// startSecure starts an etcd that requires TLS, and client certificates of its CA.
func startSecure(t *testing.T, files pki.Files) (endpoint string) {
	t.Helper()
	e := serveSecure(t, "127.0.0.1:0", t.TempDir(), files)
	t.Cleanup(e.Close)
	return e.Clients[0].Addr().String()
}

// serveSecure is startSecure for an address and a data directory. The caller closes the server.
func serveSecure(t *testing.T, at, dir string, files pki.Files) *embed.Etcd {
	t.Helper()
	c := embed.NewConfig()
	c.Dir, c.LogLevel, c.LogOutputs = dir, "error", []string{"/dev/null"}
	client, peer := url.URL{Scheme: "https", Host: at}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	secure := &c.ClientTLSInfo
	secure.CertFile, secure.KeyFile, secure.TrustedCAFile, secure.ClientCertAuth = files.Cert, files.Key, files.CA, true
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	<-e.Server.ReadyNotify()
	return e
}

// TestNobodyThereIsNamed: an address where nothing listens is named, and so is the setting.
func TestNobodyThereIsNamed(t *testing.T) {
	t.Parallel()
	client, err := Dial(Config{Endpoints: []string{"http://127.0.0.1:1"}})
	must(t, err)
	defer client.Close()
	err = client.Why(t.Context(), context.DeadlineExceeded)
	if !errors.Is(err, context.DeadlineExceeded) ||
		!strings.Contains(err.Error(), "etcd.endpoints: dial tcp 127.0.0.1:1: connect: connection refused") {
		t.Error(err)
	}
}

// TestHandshakeFails: an etcd whose certificate is not trusted, or that does not trust ours, is not
// reported as down.
func TestHandshakeFails(t *testing.T) {
	t.Parallel()
	ours, others := t.TempDir(), t.TempDir()
	for _, dir := range []string{ours, others} {
		must(t, pki.Bootstrap(dir, pki.Options{}))
	}
	good, bad := pki.FilesIn(ours, pki.Ctl), pki.FilesIn(others, pki.Ctl)
	plain, secure := startEtcd(t).at, startSecure(t, pki.FilesIn(ours, pki.Router))
	for name, c := range map[string]struct {
		at    string
		files pki.Files
		says  string
	}{
		"another CA":          {secure, bad, "unknown authority"},
		"a client of another": {"https://" + secure, pki.Files{CA: good.CA, Cert: bad.Cert, Key: bad.Key}, "certificate"},
		"no client":           {secure, pki.Files{CA: good.CA}, "certificate required"},
		"not by TLS":          {plain, good, "as one without TLS does"},
		"nobody there":        {"127.0.0.1:1", good, ""},
		"as it should be":     {secure, good, ""},
	} {
		t.Run(name, func(t *testing.T) {
			id, err := pki.Load(c.files)
			must(t, err)
			client, err := Dial(Config{Endpoints: []string{c.at}, TLS: id, RequestTimeout: time.Second})
			must(t, err)
			defer client.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			must(t, client.Watch(ctx, "key", Handler{Lost: func(lost error) { err = lost; cancel() },
				List: func(Listing) {
					err = client.Why(ctx, context.DeadlineExceeded) // slow for another reason than TLS
					cancel()
				}}))
			var failed *HandshakeError
			if found := errors.As(err, &failed); err == nil || found != (c.says != "") ||
				found && (!strings.Contains(err.Error(), c.says) ||
					!strings.Contains(err.Error(), "etcd.ca, etcd.cert and etcd.key")) {
				t.Errorf("%v", err)
			}
		})
	}
}
