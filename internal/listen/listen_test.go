package listen

import (
	"net"
	"os"
	"path/filepath"
	"strings"
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
	for _, address := range []string{"", "8080", "unix:x", "unix:/run/x", "unix://x", "unix://", "unix:x:1",
		"127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "::1:80"} {
		if Check(address) == nil {
			t.Errorf("%q is accepted", address)
		}
		if l, err := Open(address); err == nil {
			l.Close()
			t.Errorf("%q is opened as %s", address, l.Addr())
		}
	}
}

func TestARefusalNamesTheSetting(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	at := busy.Addr().String()
	by := ""
	if _, err := os.Stat("/proc/net/tcp"); err == nil {
		by = " by "
	}
	for address, want := range map[string]string{
		at:            "x.listen (--listen) " + at + ": the port is in use" + by,
		"192.0.2.1:1": "x.listen (--listen): listen tcp 192.0.2.1:1: ",
	} {
		if _, err := OpenFor("x.listen", "--listen", address); err == nil || !strings.HasPrefix(err.Error(), want) ||
			!strings.HasSuffix(err.Error(), "with --listen") {
			t.Errorf("%s: %v, want %s", address, err, want)
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

func TestOverlap(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true}, {"127.0.0.1:80", "127.0.0.1:81", false}, {"127.0.0.1:0", "127.0.0.1:0", false},
		{":80", "127.0.0.1:80", true}, {"0.0.0.0:80", "10.0.0.1:80", true}, {"[::]:80", "10.0.0.1:80", true},
		{"0.0.0.0:80", "[::1]:80", false}, {"localhost:80", "127.0.0.1:80", true}, {"10.0.0.1:80", "10.0.0.2:80", false},
		{"a:80", "A:80", true}, {"a:http", "a:80", true}, {"a:80", "b:80", false},
		{"unix:///run/x", "unix:///run/./x", true}, {"unix:///run/x", "unix:///run/y", false}, {"unix:///run/x", ":80", false}, {"x", "x", false},
	} {
		if Overlap(c.a, c.b) != c.want || Overlap(c.b, c.a) != c.want {
			t.Errorf("%s and %s: want %v", c.a, c.b, c.want)
		}
	}
}

func TestExamineLooksAndMakesNothing(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"unix://" + filepath.Join(dir, "s"): true, "127.0.0.1:80": true, "unix://" + file: false,
		"unix://" + filepath.Join(dir, "no", "s"): false, "nonsense": false,
		"203.0.113.7:80": false, "localhost:80": true, ":80": true,
	} {
		if err := Examine(address); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
	if made, err := os.ReadDir(dir); err != nil || len(made) != 1 {
		t.Errorf("made %v, %v", made, err)
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
