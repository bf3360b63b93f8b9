package gateway

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// What a client that was refused in the middle of its request may still send, so that it
// gets to read why instead of a reset.
const (
	lingerBytes = 256 << 20
	lingerTime  = 5 * time.Second
)

// lingerListener makes connections that can be closed without a reset.
type lingerListener struct{ net.Listener }

func (l lingerListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &lingerConn{Conn: c}, nil
}

// lingerConn reads what the client still sends before it closes, if it was told to.
type lingerConn struct {
	net.Conn
	linger atomic.Bool
}

// NetConn is the connection below, for those who look for it.
func (c *lingerConn) NetConn() net.Conn { return c.Conn }

func (c *lingerConn) Close() error {
	if c.linger.Swap(false) {
		c.Conn.SetReadDeadline(time.Now().Add(lingerTime))
		io.CopyN(io.Discard, c.Conn, lingerBytes)
	}
	return c.Conn.Close()
}

// linger marks the connection under c, whose request was not read to its end.
func linger(c net.Conn) {
	for {
		if l, ok := c.(*lingerConn); ok {
			l.linger.Store(true)
			return
		}
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return
		}
		c = over.NetConn()
	}
}
