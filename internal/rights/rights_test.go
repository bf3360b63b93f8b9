package rights

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestChecks(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone, below := filepath.Join(dir, "a", "b"), filepath.Join(file, "x")
	for name, c := range map[string]struct {
		err  error
		want string // part of the error; "" for none
	}{
		"read":                         {Readable(file), ""},
		"read what is not there":       {Readable(gone), gone + " does not exist"},
		"read a directory":             {Readable(dir), "is a directory"},
		"read below a file":            {Readable(below), "not a directory"},
		"list":                         {Listable(dir), ""},
		"list a file":                  {Listable(file), "is not a directory"},
		"list what is not there":       {Listable(gone), "does not exist"},
		"append":                       {Appendable(file), ""},
		"append to a new file":         {Appendable(filepath.Join(dir, "new")), ""},
		"append where no directory is": {Appendable(gone), filepath.Dir(gone) + " does not exist"},
		"append to a directory":        {Appendable(dir), "is a directory"},
		"write into":                   {Writable(dir), ""},
		"write into a file":            {Writable(file), "is not a directory"},
		"make":                         {Makeable(gone), ""},
		"make what is there":           {Makeable(dir), ""},
		"make a file":                  {Makeable(file), "is not a directory"},
		"make below a file":            {Makeable(below), "not a directory"},
	} {
		if (c.err == nil) != (c.want == "") || c.err != nil && !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, c.err, c.want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("a check made something: %v, %v", entries, err)
	}
}

// TestBound checks that nothing without an end is read.
func TestBound(t *testing.T) {
	if _, err := ReadFile("/dev/zero"); err == nil || err.Error() != "/dev/zero is a device, not a file" {
		t.Error(err)
	}
	name := filepath.Join(t.TempDir(), "huge")
	for size, want := range map[int64]string{maxFile: "", maxFile + 1: name + " has more than 64 MiB"} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		text, err := ReadFile(name)
		if want == "" && (err != nil || int64(len(text)) != size) || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%d bytes: %d, %v", size, len(text), err)
		}
	}
}

// TestPipes checks that nothing waits for the program that writes a pipe with a name, and that a
// shell's pipe is read to its end.
func TestPipes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := ReadFile(name)
	for _, err := range []error{err, Readable(name)} {
		if err == nil || err.Error() != name+" is a pipe, not a file" {
			t.Error(err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	go func() {
		_, _ = w.WriteString("text")
		_ = w.Close()
	}()
	own := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if text, err := ReadFile(own); err != nil || string(text) != "text" || Readable(own) != nil {
		t.Errorf("%q, %v, %v", text, err, Readable(own))
	}
}
