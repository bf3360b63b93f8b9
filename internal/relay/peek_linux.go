package relay

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peekSocket asks the kernel, without blocking or consuming, what waits in the receive queue of fd.
// unix.Recvfrom would allocate an address.
func peekSocket(fd uintptr) peeked {
	var b [1]byte
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&b)), 1,
			unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		switch {
		case errno == unix.EINTR:
			continue
		case errno == unix.EAGAIN:
			return peekNothing
		case errno != 0 || n == 0:
			return peekClosed
		}
		return peekBytes
	}
}
