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
	lingerIdle  = 250 * time.Millisecond // and it must go on sending
)

// listener bounds the connections, and makes them such that can be closed without a reset.
type listener struct {
	net.Listener
	open  *counter
	limit int
	full  func() // counts a connection that was turned away
}

// refusal is what a connection beyond the limit gets; there is no request yet whose API
// could be answered in its own envelope.
const refusal = "HTTP/1.1 503 Service Unavailable\r\nServer: cognitora\r\nContent-Type: application/json\r\n" +
	"Retry-After: 1\r\nConnection: close\r\nContent-Length: 149\r\n\r\n" + refusalBody

const refusalBody = `{"error":{"message":"too many connections are open in this router (limits.max_connections)","type":"service_unavailable","param":null,"code":"full"}}`

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.take(l.limit) {
			return &lingerConn{Conn: c, open: l.open}, nil
		}
		l.full()
		c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it fits the socket's buffer
		io.WriteString(c, refusal)
		c.Close()
	}
}

// lingerConn reads what the client still sends before it closes, if it was told to.
type lingerConn struct {
	net.Conn
	open   *counter
	closed atomic.Bool
	linger atomic.Bool
}

// NetConn is the connection below, for those who look for it.
func (c *lingerConn) NetConn() net.Conn { return c.Conn }

func (c *lingerConn) Close() error {
	if c.linger.Swap(false) {
		c.discard()
	}
	if !c.closed.Swap(true) {
		c.open.give()
	}
	return c.Conn.Close()
}

// discard reads until the client stops sending.
func (c *lingerConn) discard() {
	var scrap [32 << 10]byte
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
