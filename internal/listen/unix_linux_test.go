package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestOpenUnix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	for _, mode := range []fs.FileMode{0o660, 0o600, 0o666} { // the last mode exceeds what the umask allows
		l, err := OpenUnix(path, mode, os.Getgid())
		if err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != mode|fs.ModeSocket || int(info.Sys().(*syscall.Stat_t).Gid) != os.Getgid() {
			t.Errorf("%v, %v, want %v", info.Mode(), err, mode)
		}
		if l.Addr().String() != path || l.Addr().Network() != "unix" {
			t.Errorf("%v listens", l.Addr())
		}
		if second, err := OpenUnix(path, mode, -1); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a second listener: %v, %v", second, err)
		}
		l.SetUnlinkOnClose(mode == 0o666) // otherwise the next round finds the socket left behind
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("closed, and there still: %v", err)
	}
}

func TestOpenUnixFails(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenUnix(filepath.Join(dir, "no", "s"), 0o600, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenUnix(filepath.Join(dir, "file"), 0o600, -1); !errors.Is(err, syscall.EADDRINUSE) {
		t.Error(err)
	}
	if os.Getuid() != 0 {
		if _, err := OpenUnix(filepath.Join(dir, "s"), 0o600, 0); !errors.Is(err, ErrGroup) {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestPeerOf(t *testing.T) {
	l, err := OpenUnix(filepath.Join(t.TempDir(), "s"), 0o600, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	want := Peer{int32(os.Getpid()), uint32(os.Getuid()), uint32(os.Getgid())}
	if p, err := PeerOf(raw); err != nil || p != want {
		t.Errorf("%+v, %v, want %+v", p, err, want)
	}
	c.Close()
	if _, err := PeerOf(raw); err == nil {
		t.Error("a closed socket has a peer")
	}
}

// TestOpenForNamesWhatIsThere: the error names a socket with a listener, a plain file, or a missing
// directory.
func TestOpenForNamesWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	l, err := Open("unix://" + dir + "/taken")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"taken": fmt.Sprintf("the socket is in use by listen.test (process %d); stop that program", os.Getpid()),
		"file":  "there is a file that is no socket; remove it", "no/s": "the socket cannot be made",
	} {
		_, err := OpenFor("router.listen", "--listen", "unix://"+dir+"/"+path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(),
			"address of this host") || !strings.Contains(err.Error(), "give another path with --listen") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
