package kvcached

import (
	"testing"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/pki"
)

// TestAdminCertificates checks who may read an admin port with certificates.
func TestAdminCertificates(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(dir, pki.KVCached)
	c, _ := settings(t, t.TempDir(), func(c *Config) {
		c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	})
	d, _ := begin(t, c)
	adminporttest.Readers(t, d.AdminAddr().String(), dir)
}
