package gateway

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// arrival describes the request that is being read from a connection, by the bytes that have come
// so far. An arrival also describes a request that never becomes complete. Except for its Body,
// only the connection's goroutine uses an arrival.
type arrival struct {
	intake.Body

	line  [64]byte // the first bytes of the request line, enough for a method and the path of an API
	n     int      // number of bytes in line
	began time.Time
	late  bool             // the client has exceeded the time for the request
	fault *apierror.Error  // why the request is refused, regardless of the request's contents
	who   *trust.Principal // nil: refused
	peer  *auth.Peer       // nil: not looked at yet

	between bool // between requests: no byte has come since the last request
}

// client is a connection as the server reads it.
type client interface {
	net.Conn
	arriving() *arrival
}

func (a *arrival) arriving() *arrival { return a }

// arrived records the bytes and the error of one read.
func (a *arrival) arrived(p []byte, err error) {
	a.between = a.between && len(p) == 0
	if len(p) > 0 && a.Came(len(p)) == int64(len(p)) {
		a.began = time.Now()
	}
	if a.n < len(a.line) {
		a.n += copy(a.line[a.n:], p)
	}
	a.late = err != nil && isTimeout(err)
}

func isTimeout(err error) bool {
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}

// named sets line to the method and path of a parsed head. Before the call, line may begin with
// bytes that preceded the head on the connection.
func (a *arrival) named(h *fasthttp.RequestHeader) {
	a.n = copy(a.line[:], h.Method())
	if a.n < len(a.line) {
		a.line[a.n] = ' '
		a.n++
	}
	a.n += copy(a.line[a.n:], h.RequestURI())
}

// next forgets the complete request. The next byte belongs to another request.
func (a *arrival) next() {
	a.n, a.began, a.fault, a.who, a.between = 0, time.Time{}, nil, nil, true
	a.Body.Next()
}

// asked returns the method and API of the request line, if they have come, and the endpoint's name.
func (a *arrival) asked() (method string, api scan.API, name string) {
	line, _, _ := bytes.Cut(a.line[:a.n], []byte("\r\n"))
	verb, target, found := bytes.Cut(line, []byte(" "))
	if !found || len(verb) > 8 || len(bytes.Trim(verb, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) > 0 {
		return "", scan.Other, scan.Other.String()
	}
	path := target[:len(target)-len(bytes.TrimLeftFunc(target, func(r rune) bool { return r > ' ' && r != '?' }))]
	r, _, _ := find(verb, path)
	api = apiOf(path)
	return string(verb), api, r.name(api)
}

// plain is a connection without TLS.
type plain struct {
	net.Conn
	relay.Parkable
	arrival
	bodies  *intake.Bodies
	parker  *parker
	leaving atomic.Bool // the connection counts in parker.leaving
}

// parker decides when an idle connection moves to the relay's loops.
type parker struct {
	*relay.Parking
	litter *litter
	after  time.Duration

	mu      sync.RWMutex // while mu is held for writing, no connection is being parked
	ended   bool
	leaving sync.WaitGroup // parked connections whose goroutine has not returned yet
}

// park is Parking.Park until end is called. Afterwards park refuses.
func (r *parker) park(c *plain, since time.Time) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.ended {
		return false
	}
	r.leaving.Add(1)
	c.leaving.Store(true)
	if r.Park(c, since) {
		r.litter.parked.Add(1)
		return true
	}
	c.leaving.Store(false)
	r.leaving.Done()
	return false
}

// end stops further parking. end waits until the server's goroutines of the parked connections have
// returned. A server that shuts down closes its idle connections, and a parked connection is not
// among the idle ones.
func (r *parker) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.leaving.Wait()
}

// parkAfter is the idle time after which a connection is parked. A move to the loops and back costs
// about as much as a request, so a busy client's connection stays with its goroutine.
const parkAfter = 5 * time.Second

func (r *parker) possible() bool { return r.Loops != nil && r.after < r.KeepAlive }

// errParked is returned by await when the connection no longer belongs to this goroutine.
var errParked = errors.New("connection has been parked")

// await reads the first bytes of the next request. await parks the connection if no byte comes for
// the parker's idle time.
func (c *plain) await(p []byte) (int, error) {
	since := time.Now()
	c.Conn.SetReadDeadline(since.Add(c.parker.after))
	n, err := c.Conn.Read(p)
	if err == nil || !isTimeout(err) {
		return n, err
	}
	if c.parker.park(c, since) {
		return 0, errParked
	}
	c.Conn.SetReadDeadline(since.Add(c.parker.KeepAlive))
	return c.Conn.Read(p)
}

func (c *plain) Read(p []byte) (n int, err error) {
	if err := c.bodies.Grow(&c.Body, len(p)); err != nil {
		c.fault = errBodies
		return 0, err
	}
	if c.between && !c.Handed() && c.parker.possible() {
		n, err = c.await(p)
	} else {
		n, err = c.Conn.Read(p)
	}
	if err == errParked {
		return 0, io.EOF // the server releases the connection
	}
	c.arrived(p[:n], err)
	return n, err
}

// NetConn returns the connection below, for code that needs the socket.
func (c *plain) NetConn() net.Conn { return c.Conn }

func (c *plain) Close() error {
	if c.Kept() {
		if c.leaving.CompareAndSwap(true, false) {
			c.parker.leaving.Done()
		}
		return nil
	}
	return c.Conn.Close()
}

// returned is a plain connection that came back from the relay's loops. The server gets a new
// connection object, because the server may still be busy with the first one.
type returned struct{ *plain }

// serveAgain serves a parked connection whose next request has come.
func (g *Gateway) serveAgain(c net.Conn) {
	if r, ok := c.(*returned); ok {
		c = r.plain
	}
	if p, ok := c.(*plain); ok {
		p.between = false // the next request has come and gets its own time
		c = &returned{p}
	}
	g.server.ServeConn(c) // no caller takes the error
}

// secure is a connection with TLS.
type secure struct {
	*tls.Conn
	arrival
	bodies *intake.Bodies
}

func (c *secure) Read(p []byte) (int, error) {
	if err := c.bodies.Grow(&c.Body, len(p)); err != nil {
		c.fault = errBodies
		return 0, err
	}
	n, err := c.Conn.Read(p)
	c.arrived(p[:n], err)
	return n, err
}

func (c *secure) Close() error {
	return c.Conn.Close()
}

// front wraps each accepted connection in a client.
type front struct {
	net.Listener
	tls    *tls.Config // nil: plain HTTP
	bodies *intake.Bodies
	parker *parker
}

func (f *front) Accept() (net.Conn, error) {
	c, err := f.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if f.tls == nil {
		p := &plain{Conn: c, bodies: f.bodies, parker: f.parker}
		p.Body.Conn = p
		return p, nil
	}
	s := &secure{Conn: tls.Server(c, f.tls), bodies: f.bodies}
	s.Body.Conn = s
	return s, nil
}

// arrivingAt returns the arrival of the request that is being read for ctx.
func arrivingAt(ctx *fasthttp.RequestCtx) *arrival { return ctx.Conn().(client).arriving() }
