package netpath

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestDoorClosesWhileItReaches: with a server that accepts no connection, Close does not wait until
// the kernel gives up.
func TestDoorClosesWhileItReaches(t *testing.T) {
	side, err := newSide(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
	if errors.Is(err, fs.ErrPermission) {
		t.Skipf("needs root, for network namespaces: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer side.shut()
	at := full(t)
	d, err := side.Door(netip.AddrPortFrom(netip.IPv4Unspecified(), 0), at.String())
	if err != nil {
		t.Fatal(err)
	}
	side.Do(func() { err = configure("lo", side.Addr, defaultQueue) })
	if err != nil {
		t.Fatal(err)
	}
	in, err := side.DialTCP(t.Context(), netip.AddrPortFrom(side.Addr, d.Addr.Port()).String())
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	line := fmt.Sprintf("0100007F:%04X 02 ", at.Port()) // the state SYN_SENT
	within(t, soon, "the door reaches for its server", func() bool {
		table, err := os.ReadFile("/proc/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(table), line)
	})
	d.Close() // would hang if it waited for the server
}

// full returns the address of a server whose queue has no room for another connection.
func full(t *testing.T) netip.AddrPort {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	err = errors.Join(syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), syscall.Listen(fd, 0))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(bound.(*syscall.SockaddrInet4).Port))
	c, err := net.Dial("tcp", at.String()) // a queue of 0 has room for one connection
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return at
}
