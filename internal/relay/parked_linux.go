package relay

import (
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// reserve makes the duplicate descriptor. c may be used until take.
func (l *parked) reserve(c net.Conn) error {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return errNoDescriptor
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { l.fd, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil && failed != nil {
		err = os.NewSyscallError("fcntl", failed)
	}
	return err
}

// cancel undoes reserve.
func (l *parked) cancel() { unix.Close(l.fd) }

// take closes c, so that l.fd is the only descriptor.
func (l *parked) take(c net.Conn) {
	c.Close()
	l.out = true
}

// back makes an ordinary connection from l.fd. back fails if descriptors are short; then l.fd is
// closed.
func (l *parked) back() (net.Conn, error) {
	f := os.NewFile(uintptr(l.fd), "parked")
	defer f.Close()
	l.out = false
	return net.FileConn(f) // net.FileConn duplicates the descriptor
}

// end closes the connection if it is parked, and reports whether it was.
func (l *parked) end() bool {
	if !l.out {
		return false
	}
	l.out = false
	unix.Close(l.fd)
	return true
}

// reset makes the close send a reset, so that the kernel drops bytes that were not read.
func (l *parked) reset() {
	unix.SetsockoptLinger(l.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// Read is called by crypto/tls.
func (w *wire) Read(p []byte) (int, error) {
	if !w.parked {
		return w.Conn.Read(p)
	}
	if w.dry {
		return 0, errNotNow
	}
	n, err := receive(w.fd, p)
	w.dry = n < len(p) && !w.ending || err == errNotNow
	return n, err
}

// Write is called by crypto/tls to answer an alert or a change of keys. The answers are a few
// bytes, for which the socket has room.
func (w *wire) Write(p []byte) (int, error) {
	if !w.parked {
		return w.Conn.Write(p)
	}
	n, err := transmit(w.fd, p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	return n, err
}

// receive reads the available bytes without blocking. receive returns errNotNow if no bytes are
// available, and io.EOF at the end. The system call is so short that the scheduler is not told of
// the call.
func receive(fd int, p []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return 0, errNotNow
	case errno != 0:
		return 0, os.NewSyscallError("recv", errno)
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// transmit writes the bytes that the socket takes without blocking, and returns their number.
func transmit(fd int, p []byte) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(p))),
		uintptr(len(p)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	switch {
	case errno == unix.EAGAIN || errno == unix.EINTR:
		return 0, nil
	case errno != 0:
		return 0, os.NewSyscallError("send", errno)
	}
	return int(n), nil
}
