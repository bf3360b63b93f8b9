package relay

import (
	"net"
	"sync"
	"time"
)

// Bounds for a refused client that is still sending its request. The client's bytes are read and
// dropped, so that the client can read the answer instead of getting a reset.
const (
	lingerBytes = 256 << 20
	lingerTime  = 5 * time.Second
	lingerIdle  = 250 * time.Millisecond // longest pause in the client's sending
)

// Linger makes the close of c wait while the client still sends. Linger is for a request that is
// answered before it was read to its end. Linger does nothing to connections that are not from
// Watcher.Listen.
func Linger(c net.Conn) {
	if cc := clientConnOf(c); cc != nil {
		cc.linger.Store(true)
	}
}

// scraps are buffers for discarded bytes, one for each lingering connection. The server's limit of
// connections bounds their number.
var scraps = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// discard reads and drops bytes until the client stops sending.
func (c *clientConn) discard() {
	scrap := scraps.Get().(*[32 << 10]byte)
	defer scraps.Put(scrap)
	end := time.Now().Add(lingerTime)
	for total := 0; total < lingerBytes; {
		now := time.Now()
		if now.After(end) {
			return
		}
		c.Conn.SetReadDeadline(now.Add(lingerIdle))
		n, err := c.Conn.Read(scrap[:])
		if err != nil {
			return
		}
		total += n
	}
}

// resetOnClose makes the close send a reset, so that the kernel drops bytes that the client has not
// read.
func (c *clientConn) resetOnClose() {
	if c.parked.out {
		c.parked.reset()
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // fails if the connection has ended already
	}
}
