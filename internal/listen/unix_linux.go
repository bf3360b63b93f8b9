package listen

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrGroup means that a socket cannot be given to a group.
var ErrGroup = errors.New("the socket cannot be given to the group")

// OpenUnix binds a Unix socket at path with this mode and, unless gid is negative, this group. The
// mode and the group are set before anybody can connect. Like Open, OpenUnix replaces the socket of
// a killed process. Errors are ErrGroup, and those of net.Listen.
func OpenUnix(path string, mode fs.FileMode, gid int) (*net.UnixListener, error) {
	return overStale(path, func() (*net.UnixListener, error) { return openUnix(path, mode, gid) })
}

// openUnix makes the file first and listens last. The kernel refuses connections until openUnix
// listens.
func openUnix(path string, mode fs.FileMode, gid int) (*net.UnixListener, error) {
	failed := func(call string, err error) (*net.UnixListener, error) {
		return nil, &net.OpError{Op: "listen", Net: "unix", Addr: &net.UnixAddr{Name: path, Net: "unix"},
			Err: os.NewSyscallError(call, err)}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return failed("socket", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close() // the listener has a duplicate of its descriptor
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return failed("bind", err)
	}
	l, err := listenOn(file, path, mode, gid)
	if err != nil {
		_ = os.Remove(path)
		return nil, err
	}
	l.SetUnlinkOnClose(true)
	return l, nil
}

func listenOn(file *os.File, path string, mode fs.FileMode, gid int) (*net.UnixListener, error) {
	if gid >= 0 {
		if err := os.Lchown(path, -1, gid); err != nil {
			return nil, fmt.Errorf("%w %d: %w", ErrGroup, gid, err)
		}
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, err
	}
	if err := unix.Listen(int(file.Fd()), unix.SOMAXCONN); err != nil {
		return nil, os.NewSyscallError("listen", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// Peer is the process at the other end of a Unix socket, at the time when it connected.
type Peer struct {
	PID      int32
	UID, GID uint32
}

// String names the process, for logs.
func (p Peer) String() string { return fmt.Sprintf("pid %d uid %d gid %d", p.PID, p.UID, p.GID) }

// PeerOf asks the kernel for the process at the other end of a Unix socket.
func PeerOf(socket syscall.RawConn) (Peer, error) {
	var cred *unix.Ucred
	var err error
	controlErr := socket.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		return Peer{}, err
	}
	return Peer{cred.Pid, cred.Uid, cred.Gid}, nil
}
