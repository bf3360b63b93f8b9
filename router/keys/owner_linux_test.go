package keys

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// TestOwner checks that an edit by root leaves the file and its lock to their owner, and that an
// owner who is locked out is told the fix.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := filepath.Join(t.TempDir(), "keys.json")
	if err := os.Chmod(filepath.Dir(filepath.Dir(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{filepath.Dir(name), name} {
		if at == name {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(at, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	edit := func() error {
		return Edit(name, func(all []*Record) ([]*Record, error) { return all, nil })
	}
	if err := edit(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{name, name + ".lock"} {
		info, err := os.Stat(at)
		if err != nil || info.Sys().(*syscall.Stat_t).Uid != nobody || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %+v, %v", at, info, err)
		}
	}
	if err := os.Chown(name+".lock", 0, 0); err != nil {
		t.Fatal(err)
	}
	var locked error
	done := make(chan struct{})
	go func() { // a thread without root's rights to files, which ends with it
		defer close(done)
		runtime.LockOSThread()
		_ = syscall.Setfsuid(nobody)
		locked = edit()
	}()
	<-done
	if want := "sudo chown --reference=" + name + " " + name + ".lock"; locked == nil ||
		!strings.Contains(locked.Error(), want) {
		t.Errorf("%v, want %s", locked, want)
	}
}
