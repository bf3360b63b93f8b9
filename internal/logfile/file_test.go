package logfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// pipe makes a pipe with a name, and returns both its ends.
func pipe(t *testing.T) (r *os.File, f *File) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	if f, err = Open(name, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return r, f
}

// TestPipe checks that a pipe takes lines if a program reads it, and is an error otherwise.
func TestPipe(t *testing.T) {
	r, f := pipe(t)
	line := make([]byte, 8)
	if _, err := f.Write([]byte("line")); err != nil {
		t.Fatal(err)
	}
	if n, err := r.Read(line); err != nil || string(line[:n]) != "line" {
		t.Errorf("%q, %v", line, err)
	}
	r.Close()
	const want = "is a pipe that no program reads"
	if _, err := Open(r.Name(), 0o600); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Error(err)
	}
}

// TestPipeWhoseReaderHangs checks that a full pipe is an error, and that the line which it has in
// part ends before the next one.
func TestPipeWhoseReaderHangs(t *testing.T) {
	r, f := pipe(t)
	n, err := f.Write(append(bytes.Repeat([]byte("x"), 2<<20), '\n')) // pipes hold 1 MiB at most
	if n == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if m, err := f.Write([]byte("lost\n")); m != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d bytes, %v", m, err)
	}
	all := make([]byte, 2<<20)
	if m, err := r.Read(all); err != nil || m == 0 {
		t.Fatal(m, err)
	}
	for range 2 {
		if _, err := f.Write([]byte("line\n")); err != nil {
			t.Fatal(err)
		}
	}
	var text []byte
	for !bytes.HasSuffix(text, []byte("line\nline\n")) {
		m, err := r.Read(all)
		if err != nil {
			t.Fatal(err)
		}
		text = append(text, all[:m]...)
	}
	if !bytes.HasSuffix(text, []byte("x\nline\nline\n")) && string(text) != "\nline\nline\n" {
		t.Errorf("%q", text[max(0, len(text)-30):])
	}
}
