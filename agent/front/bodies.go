package front

import (
	"net"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
)

const (
	smallBody  = 64 << 10 // bytes of a body that are not counted: connections bound them well enough
	unreadBody = 1        // bytes; a MaxRequestBodySize that no counted body fits
	chunked    = -1       // a ContentLength
)

// bodies bounds the bytes of request bodies that are held at once. Room is taken
// when a body is announced, because that is when fasthttp allocates it, and for
// all of Limits.MaxBody where its length is not told. It is given back with the
// end of the request or of the connection.
type bodies struct {
	limit int64
	held  atomic.Int64
}

func (b *bodies) take(n int64) bool {
	if b.held.Add(n) <= b.limit {
		return true
	}
	b.held.Add(-n)
	return false
}

// client is a connection to a client with the room of the body that comes on it.
type client struct {
	net.Conn
	bodies  *bodies
	room    atomic.Int64
	refused *failure // why the request is answered without its body; of the serving goroutine
}

// NetConn is the connection below, for those who look for it.
func (c *client) NetConn() net.Conn { return c.Conn }

// Close gives back what a request held that never became whole.
func (c *client) Close() error {
	c.give(0)
	return c.Conn.Close()
}

// give gives back all room but keep bytes.
func (c *client) give(keep int64) {
	if room := c.room.Load(); room > keep && c.room.CompareAndSwap(room, keep) {
		c.bodies.held.Add(keep - room)
	}
}

func clientOf(ctx *fasthttp.RequestCtx) *client { return ctx.Conn().(*client) }

// clients makes the connections of a listener clients.
type clients struct {
	net.Listener
	bodies *bodies
}

func (l clients) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &client{Conn: c, bodies: l.bodies}, nil
}

// headRead refuses a long body that would be read for nothing.
func (s *Server) headRead(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	at := clientOf(intake.ContextOf(h))
	at.refused = nil
	n := h.ContentLength()
	if n == chunked {
		n = s.o.Limits.MaxBody
	}
	if n <= smallBody || n > s.o.Limits.MaxBody {
		return c
	}
	switch {
	case s.inFlight.Load() >= int64(s.o.Limits.MaxRequests):
		at.refused = &errTooMany
	case !s.bodies.take(int64(n)):
		at.refused = &errBodies
	default:
		at.room.Store(int64(n))
		return c
	}
	c.MaxRequestBodySize = unreadBody
	return c
}

// bodyRead gives back the room that the body of ctx turned out not to need.
func bodyRead(ctx *fasthttp.RequestCtx) {
	keep := int64(len(ctx.Request.Body()))
	if keep <= smallBody {
		keep = 0
	}
	clientOf(ctx).give(keep)
}
