package relay

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peekSocket asks the kernel for the state of fd's receive queue, without blocking or consuming.
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
