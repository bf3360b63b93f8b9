package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
)

func TestAccessReadsWhatItNames(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	files := pki.FilesIn(dir, pki.Router)
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("hush\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	plain, err := (&Access{Username: "u", PasswordFile: password}).Config()
	if err != nil || plain.TLS != nil || plain.Username != "u" || plain.Password != "hush" {
		t.Errorf("user and password: %+v, %v", plain, err)
	}
	alone, err := (&Access{CA: files.CA}).Config()
	if err != nil || alone.TLS == nil || alone.TLS.Outside("x").GetClientCertificate != nil {
		t.Errorf("CA alone: %+v, %v", alone.TLS, err)
	}
	system, err := (&Access{Cert: files.Cert, Key: files.Key}).Config()
	if err != nil || system.TLS == nil || system.TLS.Outside("x").GetClientCertificate == nil {
		t.Errorf("certificate and the system's CAs: %+v, %v", system.TLS, err)
	}
}

func TestAccessRefusesHalves(t *testing.T) {
	for _, c := range []struct {
		access Access
		want   string
	}{
		{Access{Cert: "c"}, "etcd.cert and etcd.key"},
		{Access{CA: "a", Key: "k"}, "etcd.cert and etcd.key"},
		{Access{Username: "u"}, "etcd.username and etcd.password_file"},
		{Access{PasswordFile: "p"}, "etcd.username and etcd.password_file"},
		{Access{Username: "u", PasswordFile: "/nowhere"}, "etcd.password_file"},
		{Access{CA: "/nowhere"}, "etcd.ca"},
	} {
		if _, err := c.access.Config(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.access, err, c.want)
		}
	}
}
