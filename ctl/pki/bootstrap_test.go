package pki

import (
	"path/filepath"
	"strings"
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
	for want, args := range map[string]string{
		"join and sign":                     "bootstrap --dir DIR --role router --host other",
		"cgn-ctl pki join --force":          "join --dir DIR --role router",
		"ctl, etcd, monitor":                "bootstrap --dir DIR --role x",
		"--host is empty":                   "bootstrap --dir DIR2 --host EMPTY",
		"--role is empty":                   "bootstrap --dir DIR2 --role EMPTY",
		"--role is empty; leave it out or ": "sign --role EMPTY request",
		"--signed is empty":                 "join --dir DIR2 --signed EMPTY",
	} {
		words := strings.Fields(strings.ReplaceAll(args, "DIR", dir))
		for i := range words {
			words[i] = strings.TrimPrefix(words[i], "EMPTY")
		}
		_, err := ctl(t, nil, append([]string{"pki"}, words...)...)
		if err == nil || !strings.Contains(err.Error()+ctltest.Hint(err), want) {
			t.Errorf("%s: %v, hint %q", args, err, ctltest.Hint(err))
		}
	}
}
