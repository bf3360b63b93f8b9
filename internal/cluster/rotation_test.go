package cluster

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/internal/pki"
)

// TestCertificatesChange: the files of a client change, and etcd comes back with a certificate of
// another CA. The client keeps its connection until then, and connects again without a restart.
func TestCertificatesChange(t *testing.T) {
	t.Parallel()
	dir, was, next := t.TempDir(), t.TempDir(), t.TempDir()
	for _, d := range []string{was, next} {
		must(t, pki.Bootstrap(d, pki.Options{}))
	}
	f := pki.FilesIn(dir, pki.Agent)
	must(t, os.WriteFile(f.CA, file(t, was, "ca.crt"), 0o600))
	must(t, os.WriteFile(f.Cert, file(t, was, "agent.crt"), 0o600))
	must(t, os.WriteFile(f.Key, file(t, was, "agent.key"), 0o600))
	at, data := freeport.Address(t), t.TempDir()
	server := serveSecure(t, at, data, pki.FilesIn(was, pki.Etcd))
	c, err := (&Access{Endpoints: []string{"https://" + at}, CA: f.CA, Cert: f.Cert, Key: f.Key}).Config()
	must(t, err)
	client, err := Dial(c)
	must(t, err)
	defer client.Close()
	must(t, client.put(t.Context(), "key", []byte("before")))

	must(t, os.WriteFile(f.CA, slices.Concat(file(t, was, "ca.crt"), file(t, next, "ca.crt")), 0o600))
	must(t, os.WriteFile(f.Cert, file(t, next, "agent.crt"), 0o600))
	must(t, os.WriteFile(f.Key, file(t, next, "agent.key"), 0o600))
	must(t, client.put(t.Context(), "key", []byte("over the old connection")))
	server.Close()
	server = serveSecure(t, at, data, pki.FilesIn(next, pki.Etcd))
	defer server.Close()
	for range 20 { // each of them waits for a connection
		if err = client.put(t.Context(), "key", []byte("after")); err == nil {
			return
		}
	}
	t.Error(client.Why(t.Context(), err))
}

func file(t *testing.T, dir, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	must(t, err)
	return text
}
