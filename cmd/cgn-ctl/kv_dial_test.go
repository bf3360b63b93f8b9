package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestWhyACacheIsNotReached: a socket that may not be used is not one where nobody answers.
func TestWhyACacheIsNotReached(t *testing.T) {
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
