package listen

import (
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestLoopback(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "unix:///run/x.sock": true,
		"0.0.0.0:1": false, ":1": false, "10.0.0.1:1": false, "engine:1": false, "unix:x": false, "": false,
	} {
		if Loopback(address) != want {
			t.Errorf("%q: %v", address, !want)
		}
	}
}

func TestWrongAddressesAreRefused(t *testing.T) {
	for _, address := range []string{"", "8080", "unix:x", "unix:/run/x", "unix://x", "unix://", "unix:x:1"} {
		if Check(address) == nil {
			t.Errorf("%q is accepted", address)
		}
		if l, err := Open(address); err == nil {
			l.Close()
			t.Errorf("%q is opened as %s", address, l.Addr())
		}
	}
}

func TestOnlyAStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	address := "unix://" + path
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	l, err := Open(address)
	if err != nil {
		t.Fatalf("a socket left behind blocks the start: %v", err)
	}
	if second, err := Open(address); err == nil {
		second.Close()
		t.Error("a living socket was replaced")
	}
	l.Close()
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := Open(address); err == nil {
		l.Close()
		t.Error("a file was replaced")
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
}

func TestTCP(t *testing.T) {
	l, err := Open("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if l, err := Open(l.Addr().String()); err == nil {
		l.Close()
		t.Error("a port was bound twice")
	}
}
