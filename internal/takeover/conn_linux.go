package takeover

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/listen"
)

// send writes m, with duplicates of the listeners' descriptors.
func send(c *net.UnixConn, m message, sockets []Socket) error {
	m.Protocol, m.Version = Protocol, buildinfo.Version()
	line, err := appendMessage(nil, m)
	if err != nil {
		return err
	}
	var fds []int
	defer func() { listen.CloseAll(fds) }()
	for _, s := range sockets {
		fd, err := duplicate(s.Listener)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Setting, err)
		}
		fds = append(fds, fd)
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_, _, err = c.WriteMsgUnix(line, rights, nil)
	return err
}

// duplicate returns a duplicate of l's descriptor. The File method would also duplicate the
// descriptor, but it would change the socket's mode.
func duplicate(l net.Listener) (fd int, err error) {
	socket, ok := l.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("%T has no descriptor", l)
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return -1, err
	}
	controlErr := raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) })
	return fd, errors.Join(controlErr, err)
}

// receive reads one message and the descriptors that came with it. The caller closes the
// descriptors.
func receive(c *net.UnixConn) (m message, fds []int, err error) {
	defer func() {
		if err != nil {
			listen.CloseAll(fds)
			fds = nil
		}
	}()
	buf, control := make([]byte, maxMessage+1), make([]byte, unix.CmsgSpace(4*maxSockets))
	for n := 0; ; {
		if n == len(buf) {
			return m, fds, fmt.Errorf("a message of more than %d bytes", maxMessage)
		}
		got, rights, flags, _, err := c.ReadMsgUnix(buf[n:], control)
		more, rightsErr := listen.Descriptors(control[:rights])
		fds = append(fds, more...)
		if err = errors.Join(err, rightsErr); err != nil {
			return m, fds, err
		}
		if flags&unix.MSG_CTRUNC != 0 || len(fds) > maxSockets {
			return m, fds, fmt.Errorf("more than %d descriptors with one message", maxSockets)
		}
		if got == 0 {
			return m, fds, io.EOF
		}
		n += got
		if line, ok := bytes.CutSuffix(buf[:n], []byte("\n")); ok {
			m, err = parse(line)
			return m, fds, err
		}
	}
}

// listenerOf makes a listener of a descriptor, and closes the descriptor. The listener does not
// remove the file of a Unix socket.
func listenerOf(fd int, name string) (net.Listener, error) {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	accepting, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil || accepting == 0 {
		return nil, errors.Join(errors.New("its descriptor is no listening socket"), err)
	}
	return net.FileListener(f)
}

// sameUser returns the process at the other end. sameUser fails if that process has another user.
func sameUser(c *net.UnixConn) (listen.Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return listen.Peer{}, err
	}
	p, err := listen.PeerOf(raw)
	if err == nil && p.UID != uint32(os.Geteuid()) {
		err = fmt.Errorf("it has the user id %d, this process %d; run both as one user", p.UID, os.Geteuid())
	}
	return p, err
}

// unlink sets whether closing l removes the file of a Unix socket.
func unlink(l net.Listener, remove bool) {
	if u, ok := l.(*net.UnixListener); ok {
		u.SetUnlinkOnClose(remove)
	}
}
