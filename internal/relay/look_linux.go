package relay

import (
	"net"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attend sets the kernel's timeouts of a connection. If the kernel refuses the timeouts, the
// connection is used all the same.
func attend(socket net.Conn) {
	c, ok := socket.(*net.TCPConn)
	if !ok {
		return
	}
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{
		Enable: true, Idle: keepIdle, Interval: keepEvery, Count: int(userTimeout / keepEvery),
	})
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
		})
	}
}

// attendAgain sets the timeouts again after the socket became a net.Conn, because Go then sets
// intervals of its own.
func attendAgain(socket net.Conn) {
	c, ok := socket.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, int(keepIdle/time.Second))
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, int(keepEvery/time.Second))
		})
	}
}

// Looker reads the kernel's view of connections. One goroutine uses a Looker.
type Looker struct {
	links []Link
	info  unix.TCPInfo
	size  uint32
	known bool
	ask   func(fd uintptr) // bound once
}

// NewLooker returns a Looker without links.
func NewLooker() *Looker {
	l := &Looker{}
	l.ask = l.read
	return l
}

// Look reads at most n connections in use of a pool with Watch, in turn. Look also reads the
// connections with one of the local ports, and the oldest connection that is being made. The links
// are valid until the next call. Each link costs one system call, and blocks the user of the
// connection no longer than this call.
func (l *Looker) Look(p *Pool, n int, ports ...uint16) []Link {
	l.links = p.next(l.links[:0], n, ports)
	for i := range l.links {
		link := &l.links[i]
		if link.conn == nil {
			if link.Since >= connectAnswer {
				link.Lost = 1
			}
		} else if l.inspect(link.conn) {
			link.judge(&l.info)
		}
	}
	return l.links
}

// inspect fills info if c is an open TCP connection.
func (l *Looker) inspect(c *conn) bool {
	c.hand.Lock()
	defer c.hand.Unlock()
	l.known = false
	switch {
	case c.parked.out:
		l.read(uintptr(c.parked.fd))
	case c.raw != nil:
		_ = c.raw.Control(l.ask) // does not change known if the connection is closed
	}
	const established, closeWait = 1, 8
	return l.known && (l.info.State == established || l.info.State == closeWait)
}

func (l *Looker) read(fd uintptr) {
	l.size = uint32(unsafe.Sizeof(l.info))
	_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, fd, unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&l.info)), uintptr(unsafe.Pointer(&l.size)), 0)
	l.known = errno == 0 && l.size >= uint32(unsafe.Offsetof(l.info.Rcv_rtt))
}

// judge interprets the kernel's figures. Each timeout doubles the RTO, so the last interval between
// two timeouts was half of the present RTO.
func (l *Link) judge(i *unix.TCPInfo) {
	l.Heard = time.Duration(min(i.Last_ack_recv, i.Last_data_recv)) * time.Millisecond
	switch {
	case i.Retransmits > 0:
		l.Lost = int(i.Retransmits)
		l.Since = time.Duration(i.Last_data_sent)*time.Millisecond + time.Duration(i.Rto/2)*time.Microsecond
	case i.Probes > 0 && l.Heard >= keepIdle+probeAnswer:
		l.Lost = 1
		if i.Probes > 1 && l.Heard >= keepIdle+keepEvery {
			l.Lost = 2
		}
		l.Since = l.Heard - keepIdle
	}
}
