package up

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestOnlyAbandonedDirectoriesAreRemoved(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	there := func(dir string) bool { _, err := os.Stat(dir); return err == nil }
	held, leave, err := temporaryDirectory()
	if err != nil {
		t.Fatal(err)
	}
	abandoned, bare := filepath.Join(os.TempDir(), temporary+"1"), filepath.Join(os.TempDir(), temporary+"2")
	for _, dir := range []string{filepath.Join(abandoned, "etcd"), bare} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	lock, err := holdLock(abandoned)
	if err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(t.TempDir(), "precious")
	link := filepath.Join(os.TempDir(), temporary+"3")
	if err := os.Mkdir(precious, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(precious, lockFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, link); err != nil {
		t.Fatal(err)
	}
	others := filepath.Join(os.TempDir(), temporary+"4")
	if os.Geteuid() == 0 {
		foreign := errors.Join(os.Mkdir(others, 0o777), os.WriteFile(filepath.Join(others, lockFile), nil, 0o600),
			os.Chown(others, 65534, 65534))
		if foreign != nil {
			t.Fatal(foreign)
		}
	}
	removeAbandoned(os.TempDir())
	if there(others) != (os.Geteuid() == 0) {
		t.Error("another user's was removed")
	}
	if !there(abandoned) {
		t.Error("removed while its owner lives")
	}
	if err := lock.Close(); err != nil { // like the end of its owner
		t.Fatal(err)
	}
	next, leaveNext, err := (&flags{}).directory()
	if err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]bool{abandoned: false, held: true, bare: true, next: true, link: true,
		filepath.Join(precious, lockFile): true} {
		if there(dir) != want {
			t.Errorf("%s: there %v, want %v", dir, !want, want)
		}
	}
	for _, leave := range []func() error{leave, leaveNext} {
		if err := leave(); err != nil {
			t.Error(err)
		}
	}
	if there(held) || there(next) {
		t.Error("a directory outlived its owner")
	}
}
