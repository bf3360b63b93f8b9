package gateway

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

// listener bounds the open connections.
type listener struct {
	net.Listener
	open  *counter
	limit int
	full  func()       // counts a connection that was turned away
	over  *atomic.Bool // no more requests are read
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
			return &counted{Conn: c, open: l.open, over: l.over}, nil
		}
		l.full()
		c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it fits the socket's buffer
		io.WriteString(c, refusal)
		c.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	open   *counter
	over   *atomic.Bool
	closed atomic.Bool
}

// Read finds the end where no more requests are read, so that a connection does not outlive its last answer.
func (c *counted) Read(p []byte) (int, error) {
	if c.over.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// NetConn is the connection below, for those who look for it.
func (c *counted) NetConn() net.Conn { return c.Conn }

func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.open.give()
	}
	return c.Conn.Close()
}
