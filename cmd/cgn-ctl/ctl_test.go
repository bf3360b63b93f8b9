package main

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// ctl runs one command line and returns its output.
func ctl(t *testing.T, env map[string]string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot(&out, io.Discard, func(name string) string { return env[name] })
	root.SetArgs(args)
	root.SetContext(t.Context())
	err := root.Execute()
	return out.String(), err
}

func TestAdminErrorsSayWhatToDo(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t,
		map[string]string{"/debug/route": `{"error":{"message":"model \"x\" is not served here"}}`})
	if _, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "x", "--prompt", "hi"); err == nil ||
		!strings.Contains(err.Error(), `model "x" is not served here (HTTP 404`) {
		t.Errorf("got %v", err)
	}
	if _, err := ctl(t, nil, "top", "--once", "--admin", url); err == nil ||
		!strings.Contains(ctltest.Hint(err), "admin port") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	if _, err := ctl(t, nil, "top", "--once", "--admin", ln.Addr().String()); err == nil ||
		!strings.Contains(ctltest.Hint(err), "--admin") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
}

func TestUsageErrors(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"version", "-o", "yaml"}, {"route", "explain"}, {"cluster", "cordon"}, {"up", "--engines", "0"},
		{"up", "--routers", "99"}, {"up", "--model", "/does/not/exist.gguf"}, {"up", "--backend", "http://h", "--engines", "2"},
		{"top", "--interval", "1ms"},
	} {
		if _, err := ctl(t, nil, args...); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := ctl(t, nil, "version", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, `"version"`, `"commit"`)
	if out, err = ctl(t, nil, "--version"); err != nil || !strings.HasPrefix(out, "cgn-ctl ") {
		t.Errorf("--version: %q, %v", out, err)
	}
}
