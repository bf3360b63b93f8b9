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

// Request is a request for Send. Send and ReadHead do not copy it, so it must not change until
// ReadHead has returned.
type Request struct {
	Method string
	Path   string // with the query; Target.BasePath is put before it
	// Header holds complete "Name: value\r\n" lines, as AppendForwardHeaders makes them. Header
	// must not contain Host, Content-Length, Connection or Authorization.
	Header []byte
	More   []byte   // further lines of the same kind, sent after Header
	Body   [][]byte // segments that are sent in order without a copy
	// ForwardAuthorization, if set, is sent instead of the Target's own Authorization.
	ForwardAuthorization []byte
	// Abort, if set, can cancel this exchange, including its dialing.
	Abort *Abort
	// Once asks for a new connection that is closed after this exchange. Once is for servers whose
	// idle connections block others.
	Once bool
	// Unrepeatable keeps Send and ReadHead from sending the request again on a new connection; they
	// return ErrStale instead. Something in the request can be used only once, and the server may
	// have read it.
	Unrepeatable bool
}

// Exchange is one request and its response on one connection. One goroutine uses an Exchange. Other
// goroutines may end an Exchange through its Abort or through Link.Cut. The caller of Send closes
// the Exchange exactly once and does not use it afterwards, because Exchanges are recycled.
type Exchange struct {
	mu sync.Mutex // guards grip
	grip
	work
}

// grip is the part of an Exchange that cancel uses. Only the exchange's own goroutine changes c,
// and that goroutine reads c without the lock.
type grip struct {
	c        *conn
	canceled error  // the reason; nil: not canceled
	keeper   keeper // the other user of c; nil: only the exchange uses c
	serial   uint64 // the keeper's number of this exchange
}

// work is the part that only the exchange's goroutine uses.
type work struct {
	pool     *Pool
	request  *Request
	abort    *Abort
	outgoing outgoing
	replaced bool // a stale connection has been replaced, which happens only once
	spent    bool // the connection cannot serve another exchange
	isHead   bool

	head     head
	buffered int // used bytes of c.buf while the head is read

	body
	scan sse.Scanner // finds the first event in AwaitBody
}

// outgoing is a request while it is written.
type outgoing struct {
	line     []byte      // rendered head
	segments [][]byte    // line and body, kept for a replacement connection
	scratch  [][]byte    // backing array of vector
	vector   net.Buffers // the rest to write
	size     int         // bytes of the body
	at       time.Time
}

// emptied returns o with its memory but without its contents.
func (o *outgoing) emptied() outgoing {
	clear(o.segments[:cap(o.segments)])
	clear(o.scratch[:cap(o.scratch)])
	return outgoing{line: o.line[:0], segments: o.segments[:0], scratch: o.scratch[:0]}
}

var exchanges = sync.Pool{New: func() any { return new(Exchange) }}

// Send writes req on a pooled or new connection. deadline (zero: none) bounds
// dialing, within PoolOptions.DialTimeout, and writing. All errors are *Error.
//
// The server may have closed a pooled connection while it was idle (vLLM and llama.cpp do so after
// 5 s). Send or ReadHead sends the request again on a new connection if a reused connection fails
// with EOF or RST within a second of the write, before any response byte. The retry happens once
// per request, and for POST too. A server that closes an idle connection has not read the request.
// An engine that really dies within that second loses only work whose result nobody would have
// read. If no new connection can be made, Send or ReadHead returns the first error, of KindReset,
// because the server may have read the request and died of it.
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

// render checks the request and lays out its body as segments. render leaves the first segment for
// the head.
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

// appendHead appends the head for the server to.
func (e *Exchange) appendHead(b []byte, to *destination) []byte {
	req := e.request
	b = append(append(b, req.Method...), ' ')
	b = append(append(b, to.BasePath...), req.Path...)
	if len(to.BasePath)+len(req.Path) == 0 {
		b = append(b, '/')
	}
	b = append(append(append(b, " HTTP/1.1\r\n"...), to.fixed...), req.Header...)
	b = append(b, req.More...)
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

// isTarget reports whether path is valid in a request line.
func isTarget(path string) bool {
	for i := range len(path) {
		if path[i] <= ' ' || path[i] == 0x7f {
			return false
		}
	}
	return true
}

// connect gives e a connection: a pooled one, or a new one if fresh is set.
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

// write sends the request. write replaces a stale connection once.
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

// stale reports whether err, before any response byte, means that the server had closed the pooled
// connection while it was idle.
func (e *Exchange) stale(err error) bool {
	return e.c.served > 0 && !e.replaced && e.buffered == 0 && !e.isCanceled() &&
		isReset(err) && time.Since(e.outgoing.at) < staleWindow
}

// replace writes the request again on a new connection. If no new connection can be made, replace
// returns cause, the error of the previous connection.
func (e *Exchange) replace(deadline time.Time, cause error) error {
	if e.request.Unrepeatable {
		return newError(PhaseHead, ErrStale)
	}
	e.replaced = true
	c, _ := e.dropConn()
	e.pool.discard(c)
	err := e.connect(deadline, true)
	switch failed, ok := errors.AsType[*Error](err); {
	case err == nil:
		return e.write(deadline)
	case ok && (failed.Kind == KindCanceled || failed.Kind == KindLocal):
		return err // not the server's fault
	}
	return cause
}

// dropConn takes the connection away from Cancel.
func (e *Exchange) dropConn() (c *conn, canceled bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c, e.c = e.c, nil
	return c, e.canceled != nil
}

// ReadHead waits until deadline (zero: for ever) for the status line and the header of the final
// response. After a timeout ReadHead may be called again with a later deadline. All errors are
// *Error.
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

// headError distinguishes a connection that ended inside a head from a connection that ended before
// any head.
func (e *Exchange) headError(err error) error {
	if isTimeout(err) {
		return ErrDeadline
	}
	if err == io.EOF && e.buffered > 0 {
		return io.ErrUnexpectedEOF
	}
	return err
}

// wrap returns err, which came from the connection, as an *Error of this phase.
func (e *Exchange) wrap(phase Phase, err error) error {
	if why := e.whyCanceled(); why != nil {
		err = why
	}
	if isA[*Error](err) {
		return err
	}
	return newError(phase, err)
}

// Status returns the status code; 0 before ReadHead has succeeded.
func (e *Exchange) Status() int { return e.head.status }

// Header returns the value of the first response field with this lower-case name, or nil. The value
// is valid until Close.
func (e *Exchange) Header(name string) []byte { return e.head.get(e.c.buf, name) }

// ContentLength returns the length of the body in bytes. The length is -1 for a chunked body, and
// -2 for one that ends with the connection.
func (e *Exchange) ContentLength() int64 { return e.length }

var eventStream = []byte("text/event-stream")

// IsSSE reports whether the body is a text/event-stream.
func (e *Exchange) IsSSE() bool {
	v := e.Header("content-type")
	return len(v) >= len(eventStream) && bytes.EqualFold(v[:len(eventStream)], eventStream)
}

// cancel ends the exchange for the reason why, and may be called from any goroutine. cancel closes
// the connection. An operation on the connection then returns the reason of the first call. cancel
// must not be called after Close; Abort sees to that order.
func (e *Exchange) cancel(why error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.canceled == nil {
		e.canceled = why
	}
	e.stop()
}

// stop ends the operations on the connection. The caller holds mu.
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

// Close ends the exchange. The connection returns to the pool if the request was written, the body
// was read to its end, and Once is not set. In all other cases Close closes the connection.
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

// recycle resets everything except the buffers.
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
