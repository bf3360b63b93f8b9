package logfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPipe checks that a pipe takes lines if a program reads it, and is an error otherwise.
func TestPipe(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(name, 0o600); err == nil || !strings.HasSuffix(err.Error(), "is a pipe that no program reads") {
		t.Error(err)
	}
	r, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := Open(name, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line := make([]byte, 8)
	if _, err := f.Write([]byte("line")); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(line); err != nil || string(line[:n]) != "line" {
		t.Errorf("%q, %v", line, err)
	}
}
