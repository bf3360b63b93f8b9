// Package listentest helps to test access to Unix sockets.
package listentest

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// DialAs connects to the Unix socket at path as another user, with a group and supplementary
// groups. DialAs first opens the directories of the test and the socket to everybody, so that only
// the user and groups can lead to a refusal. DialAs skips the test unless it runs as root.
func DialAs(t testing.TB, path string, uid, gid int, groups ...uint32) *net.UnixConn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as another user")
	}
	for dir := filepath.Dir(path); dir != filepath.Clean(os.TempDir()) && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	type result struct {
		c   *net.UnixConn
		err error
	}
	done := make(chan result)
	go func() {
		// never unlocked, because this changes the thread's user: the thread ends with the
		// goroutine
		runtime.LockOSThread()
		var r result
		if r.err = become(uid, gid, groups); r.err == nil {
			r.c, r.err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
		}
		done <- r
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	t.Cleanup(func() { _ = r.c.Close() })
	return r.c
}

// become changes the user of this thread only, which functions of package syscall cannot do.
func become(uid, gid int, groups []uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)),
		uintptr(unsafe.Pointer(unsafe.SliceData(groups))), 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return os.NewSyscallError("setresgid", errno)
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return os.NewSyscallError("setresuid", errno)
	}
	return nil
}
