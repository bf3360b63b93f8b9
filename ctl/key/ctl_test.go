package key

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/router/keys"
)

func ctl(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return ctltest.Run(t, Command, nil, append([]string{"key"}, args...)...)
}

func TestMain(m *testing.M) { ctltest.Main(m) }

// TestKeys walks a key through its life, in a file and in etcd.
func TestKeys(t *testing.T) {
	server, err := etcdserver.Start(t.TempDir(), freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "keys.json")
	for where, flags := range map[string][]string{
		"file": {"--keys-file", file}, "etcd": {"--etcd", server.Endpoint()},
	} {
		t.Run(where, func(t *testing.T) { life(t, flags) })
	}
	page, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(page), "cgn_") {
		t.Errorf("the file has a key, %v", err)
	}
}

func life(t *testing.T, flags []string) {
	run := func(args ...string) string {
		t.Helper()
		out, err := ctl(t, append(args, flags...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	var made struct{ ID, Key, Tenant string }
	out := run("create", "--tenant", "acme", "--model", "m-*,n", "--scope", "inference,route.pin", "--expires", "90d",
		"--name", "CI", "--limit", "tokens_per_minute=500,concurrent=2", "-o", "json")
	if err := json.Unmarshal([]byte(out), &made); err != nil {
		t.Fatal(err)
	}
	if _, id, ok := keys.Parse([]byte(made.Key)); !ok || string(id) != made.ID || made.Tenant != "acme" {
		t.Errorf("%+v", made)
	}
	ctltest.Want(t, run("create"), "cgn_", "default", "inference, models", "shown only now")
	ctltest.Want(t, run("list"), made.ID, "acme", "active", "m-*,n", "inference,route.pin", "CI",
		"tokens_per_minute=500,concurrent=2", "none")
	ctltest.Want(t, run("limit", made.ID, "--limit", "budget=9000"), made.ID, "acme", "budget=9000")
	if page := run("list"); !strings.Contains(page, "budget=9000") || strings.Contains(page, "concurrent") {
		t.Error(page)
	}
	ctltest.Want(t, run("limit", made.ID), "none")
	if strings.Contains(run("list", "-o", "json"), made.Key[13:]) {
		t.Error("list shows a key")
	}
	var again struct{ ID, Key string }
	if err := json.Unmarshal([]byte(run("rotate", made.ID, "-o", "json")), &again); err != nil || again.ID != made.ID ||
		again.Key == made.Key {
		t.Errorf("%+v, %v", again, err)
	}
	ctltest.Want(t, run("revoke", made.ID), made.ID, "revoked")
	ctltest.Want(t, run("revoke", made.ID), "was revoked")
	ctltest.Want(t, run("list"), "revoked", "active")
	if _, err := ctl(t, append([]string{"limit", made.ID, "--limit", "budget=7"}, flags...)...); err == nil ||
		!strings.Contains(err.Error(), "is revoked") {
		t.Errorf("limits of a revoked key: %v", err)
	}
	for want, args := range map[string][]string{
		"is revoked":                    {"rotate", made.ID},
		"no key has the id":             {"revoke", "00000000"},
		"is not the id of a key":        {"revoke", made.Key},
		"is no scope":                   {"create", "--scope", "admin"},
		"tenant":                        {"create", "--tenant", "a b"},
		"models":                        {"create", "--model", "a*b"},
		`--expires "-1s": must be days`: {"create", "--expires", "-1s"},
		"1m to 36500d":                  {"create", "--expires", "99999999h"},
		"--model is empty":              {"create", "--model", "a", "--model", ""},
		"--scope is empty":              {"create", "--scope", "models", "--scope", ""},
		"--limit is empty":              {"create", "--limit", ""},
		"characters that do not show":   {"create", "--name", "a\u202eb"},
		"--grace":                       {"rotate", made.ID, "--grace", "-1s"},
		`--limit "rpm=5" is no limit`:   {"create", "--limit", "rpm=5"},
		"not a whole number":            {"limit", made.ID, "--limit", "budget=0"},
	} {
		out, err := ctl(t, append(args, flags...)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(out+err.Error(), made.Key[13:]) {
			t.Errorf("%v: %v", args[0], err)
		}
	}
}

// TestFileOfKeys checks what is said of a file that holds no keys, and of one beside etcd.
func TestFileOfKeys(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"empty": "", "list": "[]"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"it is empty; cgn-ctl key create", []string{"list", "--keys-file", at("empty")}},
		{`it is no object like {"keys": []}`, []string{"list", "--keys-file", at("list")}},
		{"the directory " + at("none") + " does not exist", []string{"create", "--keys-file", at("none/keys")}},
		{"--keys-file and --etcd:", []string{"create", "--keys-file", at("x"), "--etcd", "127.0.0.1:1"}},
		{"--keys-file is empty", []string{"list", "--keys-file", ""}},
	} {
		if _, err := ctl(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
	if out, err := ctl(t, "create", "--keys-file", at("empty")); err != nil || !strings.Contains(out, "cgn_") {
		t.Errorf("an empty file: %s, %v", out, err)
	}
}
