//go:build unix && !linux

package relay

import "golang.org/x/sys/unix"

// peekSocket asks the kernel for the state of fd's receive queue, without blocking or consuming.
func peekSocket(fd uintptr) peeked {
	var b [1]byte
	for {
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return peekNothing
		case err != nil || n == 0:
			return peekClosed
		}
		return peekBytes
	}
}
