package replace

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// read checks a file's content and mode, and that nothing else than names is in its directory.
func read(t *testing.T, name, want string, mode fs.FileMode, names ...string) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil || string(text) != want {
		t.Errorf("%s: %q, %v, want %q", name, text, err, want)
	}
	if info, err := os.Stat(name); err != nil || info.Mode() != mode {
		t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, mode)
	}
	if all, err := os.ReadDir(filepath.Dir(name)); err != nil || len(all) != len(names)+1 {
		t.Errorf("%v, %v, want %v besides %s", all, err, names, name)
	}
}

func TestFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	if err := Bytes(name, 0o600, []byte("first")); err != nil {
		t.Fatal(err)
	}
	read(t, name, "first", 0o600)
	if err := os.Chmod(name, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, Part("a")), []byte("of a crash"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := Bytes(filepath.Join(dir, "link"), 0o600, []byte("2nd")); err != nil {
		t.Fatal(err)
	}
	read(t, name, "2nd", 0o640, "link")
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "a" {
		t.Errorf("the link: %q, %v", to, err)
	}
	bad := errors.New("bad")
	if err := File(name, 0o600, func(w io.Writer) error {
		_, err := w.Write([]byte("half"))
		return errors.Join(err, bad)
	}); !errors.Is(err, bad) {
		t.Error(err)
	}
	read(t, name, "2nd", 0o640, "link")
	t.Chdir(dir)
	if err := Bytes("a", 0o600, nil); err != nil {
		t.Fatal(err)
	}
	read(t, name, "", 0o640, "link")
}

// TestRefused checks that a directory is not replaced, and that a part cannot lead elsewhere.
func TestRefused(t *testing.T) {
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Bytes(filepath.Join(dir, "sub"), 0o600, nil); err == nil {
		t.Error("a directory was replaced")
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	if err := os.WriteFile(other, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(dir, Part("a"))); err != nil {
		t.Fatal(err)
	}
	if err := Bytes(filepath.Join(dir, "a"), 0o600, []byte("new")); err != nil {
		t.Fatal(err)
	}
	read(t, filepath.Join(dir, "a"), "new", 0o600, "sub")
	read(t, other, "kept", 0o600)
}

func TestWhole(t *testing.T) {
	for part, want := range map[string]string{Part("a"): "a", "a.part": "", ".a": "", "a": "", ".part": ""} {
		whole, ok := Whole(part)
		if ok != (want != "") || ok && whole != want {
			t.Errorf("%s: %q, %t", part, whole, ok)
		}
	}
}
