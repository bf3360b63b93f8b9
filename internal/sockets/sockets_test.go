package sockets

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// TestParse: lines of both tables are parsed, and invalid lines are refused.
func TestParse(t *testing.T) {
	if kernelIP("0100007F").String() != "127.0.0.1" {
		t.Skip("the lines are of a little-endian host")
	}
	const rest = " 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0"
	for _, c := range []struct{ line, ip string }{
		{"   0: 0100007F:1F90" + rest, "127.0.0.1"},
		{"   1: 00000000:1F90" + rest, "0.0.0.0"},
		{"   2: 00000000000000000000000001000000:1F90" + rest, "::1"},
		{"   3: 00000000000000000000000000000000:1F90" + rest, "::"},
	} {
		if l, ok := parse(c.line); !ok || l.IP.String() != c.ip || l.Port != 8080 || l.Inode != "4711" {
			t.Errorf("%q: %+v, %t", c.line, l, ok)
		}
	}
	for _, line := range []string{
		"", "sl  local_address rem_address   st", "0: 0100007F: 0 0A 0 0 0 0 0 1", "0: 0100007F:XX 0 0A 0 0 0 0 0 1",
		"0: :FFFFFF 0 0A 0 0 0 0 0 1",
		"0: 0100:1F90" + rest, "0: :1F90" + rest, "0: 1F90" + rest,
		"0: 0100007F:1F90 00000000:0000 01 0:0 00:0 0  1000 0 4711 1 0",
	} {
		if l, ok := parse(line); ok {
			t.Errorf("%q is taken for a listener: %+v", line, l)
		}
	}
}

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
	if err != nil || len(found) != 1 || found[0].IP.String() != "127.0.0.1" || found[0].Port != port {
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
