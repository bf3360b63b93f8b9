package relay

import (
	"net"
	"sync"
	"time"
)

// A client that was refused in the middle of its request may still send this
// much, so that it gets to read why instead of a reset.
const (
	lingerBytes = 256 << 20
	lingerTime  = 5 * time.Second
	lingerIdle  = 250 * time.Millisecond // and it must go on sending
)

// Linger makes the closing of c wait while the client still sends: for a
// request that is answered without having been read to its end. Connections
// that are not from Watcher.Listen are left alone.
func Linger(c net.Conn) {
	if cc := clientConnOf(c); cc != nil {
		cc.linger.Store(true)
	}
}

// scraps take the bytes that nobody wants: one for each connection that lingers,
// which the server's bound of connections counts.
var scraps = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// discard reads until the client stops sending.
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

// resetOnClose makes the kernel forget, with the connection, what a client has
// not read.
func (c *clientConn) resetOnClose() {
	if c.parked.out {
		c.parked.reset()
		return
	}
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // fails where nothing is left to reset
	}
}
