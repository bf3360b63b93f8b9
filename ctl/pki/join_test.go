package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// TestJoinByCommands: the three commands in the help join a host to a fleet.
func TestJoinByCommands(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(args ...string) string {
		t.Helper()
		var out, errOut strings.Builder
		root := ctltest.Root(Command, &out, &errOut, func(string) string { return "" })
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Fatalf("%v: %v %s", args, err, errOut.String())
		}
		return out.String()
	}
	save := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	run("pki", "bootstrap", "--dir", at("ca"))
	request := save("request", run("pki", "join", "--dir", at("host"), "--host", "gpu2.example"))
	signed := save("signed", run("pki", "sign", "--dir", at("ca"), request))
	if out := run("pki", "join", "--dir", at("host"), "--signed", signed); !strings.Contains(out, "agent.crt") {
		t.Error(out)
	}
	root := ctltest.Root(Command, &strings.Builder{}, &strings.Builder{}, func(string) string { return "" })
	root.SetArgs([]string{"pki", "sign", "--dir", at("ca"), "--role", "router", request})
	if err := root.Execute(); err == nil || !strings.Contains(err.Error(), "not allowed") ||
		!strings.Contains(ctltest.Hint(err), "--role") {
		t.Error("signed a role that was not to be let in:", err)
	}
	other := save("README.md", "# no request")
	for hint, args := range map[string][]string{
		"pki join": {"pki", "sign", "--dir", at("ca"), other},
		"pki sign": {"pki", "join", "--dir", at("host"), "--signed", other},
	} {
		root.SetArgs(args)
		if err := root.Execute(); err == nil || !strings.Contains(err.Error(), other) ||
			!strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("%v: %v, hint %q", args, err, ctltest.Hint(err))
		}
	}
}
