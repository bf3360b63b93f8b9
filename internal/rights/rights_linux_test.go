package rights

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

const nobody = 65534

// TestRights looks at files as a user without rights to them. Under root, TestRights uses a thread
// that gives up root's rights, and that ends with its goroutine.
func TestRights(t *testing.T) {
	dir, err := os.MkdirTemp("", "cgn-files")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o000); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	var read, written, made error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if os.Geteuid() == 0 {
			_ = syscall.Setfsuid(nobody)
		}
		read, written, made = Readable(file), Appendable(file), Appendable(filepath.Join(dir, "new"))
	}()
	<-done
	for err, want := range map[error]string{
		read: file + " cannot be read by this user", written: file + " cannot be written by this user",
		made: dir + " cannot be written to",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
