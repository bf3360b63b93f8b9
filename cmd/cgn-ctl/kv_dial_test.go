package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWhyACacheIsNotReached: what gRPC says is told without its layers, and a socket that may not
// be used is not one where nobody answers.
func TestWhyACacheIsNotReached(t *testing.T) {
	for message, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial unix /x/kv.sock: connect: connection refused"`:     "dial unix /x/kv.sock: connect: connection refused",
		`last connection error: connection error: desc = "transport: authentication handshake failed: tls: \"x\" expired"`: `tls: "x" expired`,
		`etcd: latest balancer error: last connection error: connection error: desc = "transport: Error while dialing: y"`: "etcd: latest balancer error: y",
		"the cache is full":            "the cache is full",
		`connection error: desc = cut`: `connection error: desc = cut`,
	} {
		if got := cause(message); got != want {
			t.Errorf("%s:\n%s", message, got)
		}
	}
	d := &cacheDaemon{sock: "/x/kv.sock"}
	denied := d.unavailable("/x/kv.sock",
		`connection error: desc = "transport: Error while dialing: dial unix /x/kv.sock: connect: permission denied"`)
	if text := denied.Error(); strings.Contains(text, "no cache daemon") ||
		!strings.HasSuffix(text, syscall.EACCES.Error()) {
		t.Error(text)
	}
	sock := filepath.Join(t.TempDir(), "kv.sock")
	if err := os.WriteFile(sock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl(t, map[string]string{envSock: sock}, "kv", "stats"); err == nil ||
		strings.Contains(err.Error(), "desc =") || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
}
