package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

const (
	errRequestLine = protocolError("request method, path or authorization has forbidden bytes")
)

// Request is written by Send. Send and ReadHead read it in place: nothing in
// it may change until ReadHead has returned.
type Request struct {
	Method string
	Path   string // with query; Target.BasePath is put before it
	// Header holds complete "Name: value\r\n" lines, as AppendForwardHeaders
	// makes them; no Host, Content-Length, Connection or Authorization.
	Header []byte
	Body   [][]byte // sent one after the other, not copied
	// ForwardAuthorization, when set, is sent in place of the Target's own.
	ForwardAuthorization []byte
	// Abort, when set, is what cancels this exchange, dialing included.
	Abort *Abort
	// Once asks for a new connection that ends with this exchange: for servers
	// whose idle connections are in the way of others.
	Once bool
}

// Exchange is one request and its response on one connection. It is used by
// one goroutine, apart from Cancel and a Link's Cut. The caller that got it from Send closes it
// exactly once and does not touch it afterwards: it is recycled.
type Exchange struct {
	mu sync.Mutex // guards grip
	grip
	work
}

// grip is the part that Cancel takes hold of. Only the exchange's own goroutine changes
// c, which reads it without the lock.
type grip struct {
	c        *conn
	canceled error  // why; nil: it is not
	keeper   keeper // who uses c meanwhile; nil: this exchange
	serial   uint64 // by which the keeper knows this exchange
}

// work is the part that only the goroutine of an exchange uses.
type work struct {
	pool     *Pool
	request  *Request
	abort    *Abort
	outgoing outgoing
	replaced bool // the stale connection has been replaced once
	spent    bool // the connection cannot serve another exchange
	isHead   bool

	head     head
	buffered int // bytes of c.buf in use while the head is being read

	body
	scan sse.Scanner // finds the first event for AwaitBody
}

// outgoing is a request as it is written.
type outgoing struct {
	line     []byte      // rendered head
	segments [][]byte    // line and body, kept for a replacement connection
	scratch  [][]byte    // backing array of vector
	vector   net.Buffers // what is left to write
	size     int         // of the body
	at       time.Time
}

// emptied is the memory of o.
func (o *outgoing) emptied() outgoing {
	clear(o.segments[:cap(o.segments)])
	clear(o.scratch[:cap(o.scratch)])
	return outgoing{line: o.line[:0], segments: o.segments[:0], scratch: o.scratch[:0]}
}

var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

// Send writes req on a pooled or new connection. deadline (zero: none) bounds
// dialing, within PoolOptions.DialTimeout, and writing. All errors are *Error.
//
// A pooled connection may have been closed by the server while it was idle
// (vLLM and llama.cpp do so after 5 s). When a reused connection fails with
// EOF or RST within a second of the write and not one response byte has come,
// the request is sent again, once, on a new connection: in Send or ReadHead.
// For POST too: a server that closes an idle connection has not read what we
// wrote to it, and an engine that really died in that second leaves behind
// only work that nobody will ever read. Where that connection cannot be had,
// the error is the first one, of KindReset: the request may have been read, and
// be what ended the server.
func (p *Pool) Send(req *Request, deadline time.Time) (*Exchange, error) {
	e := exchanges.Get().(*Exchange)
	e.pool, e.request, e.abort = p, req, req.Abort
	err := e.render(req)
	if err == nil {
		err = e.connect(deadline, req.Once)
	}
	if err == nil {
		err = e.write(deadline)
	}
	if err != nil {
		e.Close()
		return nil, err
	}
	return e, nil
}

// render checks the request and lays out its body as segments; the first one is
// left for the head.
func (e *Exchange) render(req *Request) error {
	if !isToken([]byte(req.Method)) || !isFieldValue(req.ForwardAuthorization) || !isTarget(req.Path) {
		return &Error{PhaseWrite, KindProtocol, errRequestLine}
	}
	o := &e.outgoing
	o.size = 0
	o.segments = append(o.segments[:0], nil)
	for _, b := range req.Body {
		if len(b) > 0 {
			o.segments, o.size = append(o.segments, b), o.size+len(b)
		}
	}
	e.isHead = req.Method == "HEAD"
	return nil
}

// appendHead renders the head for the server that to names.
func (e *Exchange) appendHead(b []byte, to *destination) []byte {
	req := e.request
	b = append(append(b, req.Method...), ' ')
	b = append(append(b, to.BasePath...), req.Path...)
	if len(to.BasePath)+len(req.Path) == 0 {
		b = append(b, '/')
	}
	b = append(append(append(b, " HTTP/1.1\r\n"...), to.fixed...), req.Header...)
	if req.ForwardAuthorization != nil {
		b = append(append(append(b, "Authorization: "...), req.ForwardAuthorization...), "\r\n"...)
	} else {
		b = append(b, to.auth...)
	}
	if req.Once {
		b = append(b, "Connection: close\r\n"...)
	}
	if size := e.outgoing.size; size > 0 || req.Method != "GET" && req.Method != "HEAD" {
		b = strconv.AppendInt(append(b, "Content-Length: "...), int64(size), 10)
		b = append(b, "\r\n"...)
	}
	return append(b, "\r\n"...)
}

// isTarget reports whether path can stand in a request line.
func isTarget(path string) bool {
	for i := range len(path) {
		if path[i] <= ' ' || path[i] == 0x7f {
			return false
		}
	}
	return true
}

// connect gives e a connection: a pooled one unless fresh is set.
func (e *Exchange) connect(deadline time.Time, fresh bool) error {
	c, err := e.pool.take(fresh)
	if err == nil && c == nil {
		ctx, release := e.abort.context()
		if c, err = e.pool.dial(ctx, deadline); err != nil {
			e.pool.release()
		} else {
			e.pool.use(c)
		}
		release()
	}
	if err != nil {
		if why := e.abort.why(); why != nil {
			err = why
		}
		return newError(PhaseDial, err)
	}
	e.mu.Lock()
	canceled := e.canceled
	e.c = c
	e.mu.Unlock()
	c.owner.Store(e)
	if canceled == nil && !e.abort.attach(e) {
		canceled = e.abort.why()
		e.cancel(canceled)
	}
	if canceled != nil {
		return &Error{PhaseDial, KindCanceled, canceled}
	}
	return nil
}

// write sends the request; a stale connection is replaced once.
func (e *Exchange) write(deadline time.Time) error {
	o := &e.outgoing
	o.line = e.appendHead(o.line[:0], e.c.to)
	o.segments[0] = o.line
	o.scratch = append(o.scratch[:0], o.segments...)
	o.vector = o.scratch
	o.at = time.Now()
	early, err := e.c.send(&o.vector, o.size, deadline)
	clear(o.scratch)
	if err == nil {
		e.spent = early || e.request.Once
		return nil
	}
	if e.isCanceled() || !isReset(err) {
		return e.wrap(PhaseWrite, err)
	}
	if e.buffered = e.c.salvage(); e.buffered > 0 {
		e.spent = true
		return nil
	}
	if e.stale(err) {
		return e.replace(deadline, e.wrap(PhaseWrite, err))
	}
	return e.wrap(PhaseWrite, err)
}

// stale reports whether err, before any response byte, means that the server
// had closed the pooled connection while it was idle.
func (e *Exchange) stale(err error) bool {
	return e.c.served > 0 && !e.replaced && e.buffered == 0 && !e.isCanceled() &&
		isReset(err) && time.Since(e.outgoing.at) < staleWindow
}

// replace writes the request again on a new connection. Where the server gives
// it none, what is left is cause: how the connection before ended.
func (e *Exchange) replace(deadline time.Time, cause error) error {
	e.replaced = true
	c, _ := e.dropConn()
	e.pool.discard(c)
	err := e.connect(deadline, true)
	var failed *Error
	switch {
	case err == nil:
		return e.write(deadline)
	case errors.As(err, &failed) && (failed.Kind == KindCanceled || failed.Kind == KindLocal):
		return err // says nothing of the server
	}
	return cause
}

// dropConn takes the connection out of the reach of Cancel.
func (e *Exchange) dropConn() (c *conn, canceled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, e.c = e.c, nil
	return c, e.canceled != nil
}

// ReadHead waits until deadline (zero: for ever) for the status line and the
// header of the final response. After a timeout it may be called again with a
// later deadline. All errors are *Error.
func (e *Exchange) ReadHead(deadline time.Time) error {
	for {
		err := e.readHead(deadline)
		if err == nil {
			e.begin()
			return nil
		}
		cause := e.wrap(PhaseHead, err)
		if !e.stale(err) {
			return cause
		}
		if err := e.replace(deadline, cause); err != nil {
			return err
		}
	}
}

func (e *Exchange) readHead(deadline time.Time) error {
	e.head.reset()
	c := e.c
	c.reading.set(c.nc, deadline)
	for {
		if e.buffered > 0 {
			if done, err := e.head.parse(c.buf[:e.buffered]); done || err != nil {
				return err
			}
		}
		if e.buffered == len(c.buf) {
			c.buf = append(c.buf, make([]byte, len(c.buf))...)
		}
		n, err := c.read(c.buf[e.buffered:])
		e.buffered += n
		if n == 0 && err != nil {
			return e.headError(err)
		}
	}
}

// headError tells a connection that ended inside a head from one that ended
// before it.
func (e *Exchange) headError(err error) error {
	if isTimeout(err) {
		return ErrDeadline
	}
	if err == io.EOF && e.buffered > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wrap makes err, from the connection, an *Error of that phase.
func (e *Exchange) wrap(phase Phase, err error) error {
	if why := e.whyCanceled(); why != nil {
		err = why
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	return newError(phase, err)
}

// Status returns the status code; 0 before ReadHead has succeeded.
func (e *Exchange) Status() int { return e.head.status }

// Header returns the value of the first response field with that name, given
// in lower case, or nil. It is valid until Close.
func (e *Exchange) Header(name string) []byte { return e.head.get(e.c.buf, name) }

// VisitHeaders calls f for every response field in the order received. The
// slices are valid until Close.
func (e *Exchange) VisitHeaders(f func(name, value []byte)) {
	buf := e.c.buf
	for _, h := range e.head.fields {
		f(buf[h.name:h.nameEnd], buf[h.value:h.valueEnd:h.valueEnd])
	}
}

// ContentLength returns the length of the body in bytes, -1 for a chunked
// body, -2 for one that ends with the connection.
func (e *Exchange) ContentLength() int64 { return e.length }

var eventStream = []byte("text/event-stream")

// IsSSE reports whether the body is a text/event-stream.
func (e *Exchange) IsSSE() bool {
	v := e.Header("content-type")
	return len(v) >= len(eventStream) && bytes.EqualFold(v[:len(eventStream)], eventStream)
}

// Cancel ends the exchange from any goroutine: the connection is closed and
// what waits on it returns ErrCanceled. It is idempotent. It must not be
// called after Close; where that order cannot be kept, use an Abort.
func (e *Exchange) Cancel() { e.cancel(ErrCanceled) }

func (e *Exchange) cancel(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.canceled == nil {
		e.canceled = why
	}
	e.stop()
}

// stop ends what waits on the connection. The caller holds mu.
func (e *Exchange) stop() {
	switch {
	case e.keeper != nil:
		e.keeper.interrupt(e.serial)
	case e.c != nil:
		e.c.close()
	}
}

func (e *Exchange) whyCanceled() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.canceled
}

func (e *Exchange) isCanceled() bool { return e.whyCanceled() != nil }

// Close ends the exchange. The connection returns to the pool if the request
// was written, the body read to its end and Once not set; otherwise it is closed.
func (e *Exchange) Close() {
	e.abort.detach(e)
	clean := e.clean()
	c, canceled := e.dropConn()
	if c != nil && clean && !canceled {
		e.pool.put(c)
	} else if c != nil {
		e.pool.discard(c)
	}
	e.recycle()
}

// recycle forgets everything but the buffers.
func (e *Exchange) recycle() {
	e.mu.Lock()
	e.grip = grip{}
	e.mu.Unlock()
	e.body.release()
	e.head.reset()
	e.scan.Reset()
	outgoing, head, scan := e.outgoing.emptied(), e.head, e.scan
	e.work = work{}
	e.outgoing, e.head, e.scan = outgoing, head, scan
	exchanges.Put(e)
}
