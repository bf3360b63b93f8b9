package model

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestAdapterChanges: the command sends what its flags say, shows what each node did, and fails if
// one has failed.
func TestAdapterChanges(t *testing.T) {
	url, last, body := ctltest.AdminPort(t, map[string]string{
		"/adapters/load": `{"model":"m","adapter":"sql","nodes":[{"node":"n1","state":"loaded","status":200},
			{"node":"n2","state":"unchanged","detail":"it was loaded already"}]}`,
		"/adapters/unload": `{"model":"m","adapter":"sql","nodes":[{"node":"n1","state":"unloaded"},
			{"node":"n2","state":"failed","detail":"connection refused"}]}`,
	})
	env := map[string]string{"CGN_ADMIN": url}
	out, err := ctl(t, env, "adapter", "load", "m", "sql", "--path", "/srv/sql", "--node", "n1,n2", "--timeout", "90s")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "n1", "loaded", "n2", "unchanged", "it was loaded already")
	if *body != `{"model":"m","adapter":"sql","path":"/srv/sql","nodes":["n1","n2"],"seconds":90}` || last.Method != "POST" {
		t.Errorf("sent %s %s", last.Method, *body)
	}
	for _, output := range []string{"table", "json"} {
		out, err = ctl(t, env, "adapter", "unload", "m", "sql", "-o", output)
		if err == nil || err.Error() != "1 of 2 nodes failed" {
			t.Errorf("one of two has failed: %v", err)
		}
		ctltest.Want(t, out, "n1", "unloaded", "connection refused")
	}
	if *body != `{"model":"m","adapter":"sql","seconds":300}` {
		t.Errorf("sent %s", *body)
	}
}

func TestBadAdapterChanges(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{
		"/adapters/load":   `{"error":{"message":"no node n9 serves m; there are n1"}}`,
		"/adapters/unload": `{"model":"m","adapter":"sql","nodes":[]}`,
	})
	env := map[string]string{"CGN_ADMIN": url}
	for line, want := range map[string]string{
		"adapter load m sql":                        "--path is missing|--path /srv/adapters/sql",
		"adapter load m":                            "ADAPTER is missing|cgn-ctl model adapter load",
		"adapter unload":                            "MODEL is missing|cgn-ctl model adapter unload",
		"adapter load m sql --path /p --timeout 1h": "--timeout 1h0m0s: must be 1s to 30m0s|",
		"adapter load m sql --path /p --node n9":    "no node n9 serves m|",
		"adapter unload m sql":                      "no node serves m|",
		"adapter unload m sql --admin " + nobody:    "no router answers at|--admin",
	} {
		text, hint, _ := strings.Cut(want, "|")
		_, err := ctl(t, env, strings.Fields(line)...)
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("%s: %v, hint %q", line, err, ctltest.Hint(err))
		}
	}
}
