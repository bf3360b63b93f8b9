package pki

import (
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestPKIBootstrap(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	out, err := ctl(t, nil, "pki", "bootstrap", "--dir", dir, "--role", "router,agent")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "router.crt", "agent.key", "ca.crt", "397d", "ca.key", "every cgn-agent host: tls.ca")
	if _, err = ctl(t, nil, "pki", "bootstrap", "--dir", dir, "--role", "router"); err == nil ||
		ctltest.Hint(err) == "" {
		t.Errorf("a second bootstrap must not replace certificates: %v", err)
	}
}

func TestLifetimes(t *testing.T) {
	for text, want := range map[string]string{"397d": "397d", "24h": "1d", "90m": "1h30m"} {
		var d days
		if err := d.Set(text); err != nil || d.String() != want {
			t.Errorf("%s: %s, %v", text, &d, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "0d", "1s", "99999d", "x"} {
		var d days
		if d.Set(text) == nil {
			t.Errorf("%q is taken for %s", text, &d)
		}
	}
}
