package front

import (
	"net"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
)

// client is a connection to a client, with the memory for its request body.
type client struct {
	net.Conn
	bodies  *intake.Bodies
	body    intake.Body
	refused *failure // why the request is answered without its body; owned by the serving goroutine
}

// NetConn returns the underlying connection.
func (c *client) NetConn() net.Conn { return c.Conn }

func (c *client) Read(p []byte) (int, error) {
	if err := c.bodies.Grow(&c.body, len(p)); err != nil {
		c.refused = &errBodies
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.body.Came(n)
	return n, err
}

// give returns the memory of the body.
func (c *client) give() { c.bodies.Give(&c.body) }

func clientOf(ctx *fasthttp.RequestCtx) *client { return ctx.Conn().(*client) }

// clients wraps the connections of a listener as clients.
type clients struct {
	net.Listener
	bodies *intake.Bodies
}

func (l clients) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	at := &client{Conn: c, bodies: l.bodies}
	at.body.Conn = at
	return at, nil
}

// headRead refuses a long body before it is read if the request would be refused anyway.
func (s *Server) headRead(h *fasthttp.RequestHeader) (c fasthttp.RequestConfig) {
	ctx := intake.ContextOf(h)
	at := clientOf(ctx)
	at.refused = nil
	switch {
	case s.bodies.Counts(h.ContentLength()) && s.inFlight.Load() >= int64(s.o.Limits.MaxRequests):
		at.refused = &errTooMany
	case !s.bodies.Announce(&at.body, ctx):
		at.refused = &errBodies
	default:
		return c
	}
	c.MaxRequestBodySize = intake.Unread
	return c
}

// bodyRead notes that the body of ctx has been read, and reports whether there is memory for it.
func (s *Server) bodyRead(ctx *fasthttp.RequestCtx) bool {
	at := clientOf(ctx)
	at.body.Next()
	return s.bodies.Whole(&at.body, len(ctx.Request.Body()))
}
