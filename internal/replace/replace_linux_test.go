package replace

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
)

// TestOwner checks that root keeps the owner of a file, and that another user's files are replaced
// unless their owner must be kept.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "cgn-replace") // which other users reach, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "a")
	if err := errors.Join(os.WriteFile(name, nil, 0o640), os.Chown(name, nobody, nobody)); err != nil {
		t.Fatal(err)
	}
	check := func(want string, uid uint32) {
		t.Helper()
		read(t, name, want, 0o640)
		info, err := os.Stat(name)
		if own := info.Sys().(*syscall.Stat_t); err != nil || own.Uid != uid {
			t.Errorf("%+v, %v", own, err)
		}
	}
	for _, write := range []func(string, fs.FileMode, []byte) error{Bytes, OwnedBytes} {
		if err := write(name, 0o600, []byte("new")); err != nil {
			t.Fatal(err)
		}
		check("new", nobody)
	}
	const another = 65533 // who may change the directory and give no file away
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	var kept, owned error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine
		_ = syscall.Setfsuid(another)
		owned = OwnedBytes(name, 0o600, []byte("owned"))
		kept = Bytes(name, 0o600, []byte("kept"))
	}()
	<-done
	if !errors.Is(owned, fs.ErrPermission) || kept != nil {
		t.Errorf("%v, %v", owned, kept)
	}
	check("kept", another)
}
