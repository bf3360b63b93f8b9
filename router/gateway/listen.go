package gateway

import (
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"
)

// listener bounds the open connections.
type listener struct {
	net.Listener
	open  *counter
	limit int
	tls   bool          // of what comes here: it cannot be told anything before its handshake
	full  func()        // counts a connection that was turned away
	over  *atomic.Bool  // no more requests are read
	empty chan struct{} // takes a token when the last connection is closed after that
}

// refusal is what a connection beyond the limit gets; there is no request yet whose API
// could be answered in its own envelope.
var refusal = "HTTP/1.1 503 Service Unavailable\r\nServer: cognitora\r\nContent-Type: application/json\r\n" +
	"Retry-After: 1\r\nConnection: close\r\nContent-Length: " + strconv.Itoa(len(refusalBody)) + "\r\n\r\n" +
	refusalBody

const refusalBody = `{"error":{"message":"too many connections are open in this router (limits.max_connections)","type":"service_unavailable","param":null,"code":"full"}}`

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.take(l.limit) {
			return &counted{Conn: c, listener: l}, nil
		}
		l.full()
		if !l.tls {
			c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it fits the socket's buffer
			io.WriteString(c, refusal)
		}
		c.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	listener *listener
	closed   atomic.Bool
}

// Read finds the end where no more requests are read, so that a connection does not outlive its
// last answer.
func (c *counted) Read(p []byte) (int, error) {
	if c.listener.over.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// NetConn is the connection below, for those who look for it.
func (c *counted) NetConn() net.Conn { return c.Conn }

// Close counts the connection until it is closed indeed: a client that was refused in the middle of
// its request is read on for a while.
func (c *counted) Close() error {
	err := c.Conn.Close()
	if !c.closed.Swap(true) {
		if l := c.listener; l.open.give() == 0 && l.over.Load() {
			select {
			case l.empty <- struct{}{}:
			default:
			}
		}
	}
	return err
}
