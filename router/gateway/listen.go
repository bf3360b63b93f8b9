package gateway

import (
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// listener bounds the number of open connections.
type listener struct {
	net.Listener
	open  *counter
	limit int
	tls   bool          // the listener's connections speak TLS, so no error can be sent before the handshake
	full  func()        // counts a connection refused at the limit
	over  *atomic.Bool  // no more requests are read
	empty chan struct{} // gets a token when the last connection closes, once over is set
}

// refusal is the response to a connection beyond the limit. No request is known yet, so it has no
// API's envelope.
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
			c.SetWriteDeadline(time.Now().Add(time.Millisecond)) // refusal fits the socket's buffer
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

// Read returns the end of file once no more requests are read. A connection then ends with its last
// answer.
func (c *counted) Read(p []byte) (int, error) {
	if c.listener.over.Load() {
		return 0, io.EOF
	}
	return c.Conn.Read(p)
}

// NetConn returns the connection below, for code that needs the socket.
func (c *counted) NetConn() net.Conn { return c.Conn }

// Close counts the connection until it is really closed. After a refusal in the middle of a request
// the server reads on for a while.
func (c *counted) Close() error {
	err := c.Conn.Close()
	if !c.closed.Swap(true) {
		if l := c.listener; l.open.give() == 0 && l.over.Load() {
			await.Wake(l.empty)
		}
	}
	return err
}
