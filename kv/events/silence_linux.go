package events

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged has the kernel give up a connection on which what was sent is not
// acknowledged for so long.
func limitUnacknowledged(c *net.TCPConn, within time.Duration) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(within.Milliseconds()))
		})
	}
}
