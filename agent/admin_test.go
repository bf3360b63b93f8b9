package agent

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
	own := pki.FilesIn(dir, pki.Agent)
	c := testConfig(t, newFakeEngine(t).URL)
	c.Etcd.Endpoints = nil
	c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	adminporttest.Readers(t, startAgent(t, c).AdminAddr().String(), dir)
}
