package rights

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestKept checks which files every user can replace, by the directories above them and above what
// they link to.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	make := func(name string, mode os.FileMode) string {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(at, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at, mode); err != nil {
			t.Fatal(err)
		}
		return at
	}
	good, group, sticky, open := make("good", 0o755), make("group", 0o775), make("sticky", 0o777|os.ModeSticky),
		make("open", 0o777)
	below := make("open/below", 0o700)
	if err := os.WriteFile(filepath.Join(open, "there"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(open, "there"), filepath.Join(good, "link")); err != nil {
		t.Fatal(err)
	}
	for name, kept := range map[string]bool{
		good + "/keys": true, group + "/keys": true, sticky + "/keys": true,
		open + "/keys": false, below + "/keys": false, good + "/link": false,
	} {
		err, want := Kept(name), "the directory "+open+" has the mode 0777"
		if (err == nil) != kept || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPrivate checks which modes a file with a secret may have.
func TestPrivate(t *testing.T) {
	name := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for mode, private := range map[os.FileMode]bool{0o400: true, 0o600: true, 0o640: true, 0o644: false, 0o660: false} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		err = Private(name, info)
		if (err == nil) != private || err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%#o", mode)) {
			t.Errorf("%#o: %v", mode, err)
		}
	}
}
