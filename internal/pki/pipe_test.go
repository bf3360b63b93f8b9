package pki

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPipes checks that a pipe in place of a certificate is refused, and not waited for.
func TestPipes(t *testing.T) {
	dir := t.TempDir()
	if err := Bootstrap(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	pipe := dir + "/pipe"
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	own := FilesIn(dir, Router)
	for _, f := range []Files{{pipe, own.Cert, own.Key}, {own.CA, pipe, own.Key}, {own.CA, own.Cert, pipe}} {
		if _, err := Load(f); err == nil || !strings.Contains(err.Error(), "is a pipe, not a file") {
			t.Error(err)
		}
	}
}
