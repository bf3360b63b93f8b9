package sockets

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestHolders: the process that listens is found, on TCP and at a path. Without a listener no
// process is found.
func TestHolders(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("Linux tells")
	}
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	found, err := Listeners(port)
	if err != nil || len(found) != 1 || found[0].IP.String() != "127.0.0.1" {
		t.Fatalf("%+v, %v", found, err)
	}
	if pids, _ := Holders(found[0].Inode); len(pids) != 1 || pids[0] != os.Getpid() {
		t.Errorf("%v, this is %d", pids, os.Getpid())
	}
	_ = l.Close()
	if pids, _ := Holders(found[0].Inode); len(pids) != 0 {
		t.Errorf("it is closed, and %v have it", pids)
	}

	path := filepath.Join(t.TempDir(), "a b")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if pids, _ := Holders(UnixListener(path)); len(pids) != 1 || pids[0] != os.Getpid() {
		t.Errorf("%v, this is %d", pids, os.Getpid())
	}
	if inode := UnixListener(filepath.Dir(path)); inode != "" {
		t.Errorf("%s listens at a folder", inode)
	}
}
