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
	"github.com/cognitora/dataplane/router/scan"
)

// arrival is what has come of the request that is being read from a connection: what is known
// of one that never becomes whole. Apart from its Body, only the goroutine that serves the
// connection uses it.
type arrival struct {
	intake.Body

	line  [64]byte // the first bytes of the request line: enough for a method and the path of an API
	n     int      // of them
	began time.Time
	late  bool            // the time to send the request has passed
	fault *apierror.Error // why it is refused, whatever else can be read of it

	between bool // requests: nothing has come since the last one
}

// client is a connection as the server reads it.
type client interface {
	net.Conn
	arriving() *arrival
}

func (a *arrival) arriving() *arrival { return a }

// arrived notes what a read has brought.
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
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// named notes the request line of a head that could be read: with it may have come what was
// before it on the connection.
func (a *arrival) named(h *fasthttp.RequestHeader) {
	a.n = copy(a.line[:], h.Method())
	if a.n < len(a.line) {
		a.line[a.n] = ' '
		a.n++
	}
	a.n += copy(a.line[a.n:], h.RequestURI())
}

// next forgets a request that has come: what comes from now on is another one.
func (a *arrival) next() {
	a.n, a.began, a.fault, a.between = 0, time.Time{}, nil, true
	a.Body.Next()
}

// asked is the method and API of the request line, as far as it has come.
func (a *arrival) asked() (method string, api scan.API) {
	line, _, _ := bytes.Cut(a.line[:a.n], []byte("\r\n"))
	verb, target, found := bytes.Cut(line, []byte(" "))
	if !found || len(verb) > 8 || len(bytes.Trim(verb, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")) > 0 {
		return "", scan.Other
	}
	path := target[:len(target)-len(bytes.TrimLeftFunc(target, func(r rune) bool { return r > ' ' && r != '?' }))]
	return string(verb), apiOf(path)
}

// plain is a connection without TLS.
type plain struct {
	net.Conn
	relay.Parkable
	arrival
	bodies  *intake.Bodies
	parker  *parker
	leaving atomic.Bool // it is one of parker.leaving
}

// parker says when an idle connection is brought to the relay's loops.
type parker struct {
	*relay.Parking
	litter *litter
	after  time.Duration

	mu      sync.RWMutex // held for writing: no connection is being parked
	ended   bool
	leaving sync.WaitGroup // parked connections that the server has not let go of yet
}

// park is Parking.Park until end.
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

// end has no further connection parked, and waits until the server has let go of those that are. A
// server that shuts down closes what is idle; what is parked is not its own.
func (r *parker) end() {
	r.mu.Lock()
	r.ended = true
	r.mu.Unlock()
	r.leaving.Wait()
}

// parkAfter leaves those who ask again soon with their goroutine: to bring a connection there and
// back costs about as much as a request.
const parkAfter = 5 * time.Second

func (r *parker) possible() bool { return r.Loops != nil && r.after < r.KeepAlive }

// errParked is what await returns when the connection is no longer this goroutine's.
var errParked = errors.New("connection has been parked")

// await is the read between two requests.
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
		return 0, io.EOF // and the server lets go
	}
	c.arrived(p[:n], err)
	return n, err
}

// NetConn is the connection below, for those who look for it.
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

// returned is a plain connection that the relay's loops have given back: another one to the
// server, which may not be through with the first.
type returned struct{ *plain }

// serveAgain goes on serving a connection whose next request has come.
func (g *Gateway) serveAgain(c net.Conn) {
	if r, ok := c.(*returned); ok {
		c = r.plain
	}
	if p, ok := c.(*plain); ok {
		p.between = false // what has come is the next request, which has its own time
		c = &returned{p}
	}
	g.server.ServeConn(c) // which has nobody to tell of an error
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

// front makes connections clients.
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

// arrivingAt is what is known of the request that is being read for ctx.
func arrivingAt(ctx *fasthttp.RequestCtx) *arrival { return ctx.Conn().(client).arriving() }
