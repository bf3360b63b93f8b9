package events

import (
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged makes the kernel give up a connection whose sent data is unacknowledged for
// the given time.
func limitUnacknowledged(c *net.TCPConn, within time.Duration) {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(within.Milliseconds()))
		})
	}
}
