package relay

import (
	"io"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

const (
	largeBufferBytes  = 32 << 10 // size of the larger read buffer, for bodies that fill the first one
	smallestBodySpace = 1 << 10  // least room after the head; with less, a large buffer is used
)

// body is the part of an Exchange that reads the response body.
type body struct {
	length   int64 // as returned by ContentLength
	left     int64 // remaining bytes of a body with a known length
	chunks   chunked
	rest     []byte // undecoded wire bytes that came with the head
	space    []byte // buffer that Next reads into
	held     int    // decoded bytes at the front of space that were not returned yet
	large    *[largeBufferBytes]byte
	ended    error // io.EOF or the failure; never changes once set
	surplus  bool  // bytes came after the end of the body
	deadline time.Time
	idle     time.Duration
}

var largeBuffers = sync.Pool{New: func() any { return new([largeBufferBytes]byte) }}

// begin sets up the body from the parsed head.
func (e *Exchange) begin() {
	buf := e.c.buf
	e.body.space = buf[e.head.line:]
	e.body.rest = buf[e.head.line:e.buffered]
	e.body.length = e.head.length
	if e.isHead || e.head.status == 204 || e.head.status == 304 {
		e.body.length = 0
		if e.head.length == lengthUntilClose { // there is no body, so its end does not need the connection
			e.head.length = 0
		}
	}
	e.left = e.length
	e.scan.Reset()
	if e.length == 0 {
		e.finish(len(e.rest) > 0)
	}
}

func (e *Exchange) finish(surplus bool) { e.ended, e.surplus = io.EOF, surplus }

// atEnd reports whether the whole body, and no byte after the body, has been read from the
// connection.
func (e *Exchange) atEnd() bool {
	return e.ended == io.EOF && !e.surplus && len(e.rest) == 0 && e.head.reusable()
}

// drained reports whether the whole body has been returned.
func (b *body) drained() bool { return b.ended == io.EOF && b.held == 0 }

func (b *body) release() {
	if b.large != nil {
		largeBuffers.Put(b.large)
	}
	*b = body{}
}

// SetReadDeadline bounds the time for reading the whole body; zero: no bound. Only the reading
// goroutine may call SetReadDeadline.
func (e *Exchange) SetReadDeadline(t time.Time) { e.deadline = t }

// SetIdleTimeout bounds the time that one read of the body waits for the upstream; zero: no bound.
func (e *Exchange) SetIdleTimeout(d time.Duration) { e.idle = d }

// Next returns at least one byte of the body, and waits if none is available. The slice is valid
// until the next call on e. At the true end of the body Next returns io.EOF. Every other error is
// an *Error. The *Error for a truncated body wraps io.ErrUnexpectedEOF.
func (e *Exchange) Next() ([]byte, error) {
	if n := e.held; n > 0 {
		e.held = 0
		return e.space[:n], nil
	}
	space := e.room()
	n, err := e.pull(space)
	if n == len(space) && e.large == nil {
		e.wantLarge()
	}
	return space[:n], err
}

// Read is like Next, but reads directly into the caller's buffer.
func (e *Exchange) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if e.held > 0 {
		n := copy(p, e.space[:e.held])
		copy(e.space, e.space[n:e.held])
		e.held -= n
		return n, nil
	}
	return e.pull(p)
}

// room returns the buffer that Next reads into.
func (e *Exchange) room() []byte {
	if e.large == nil && len(e.space) < smallestBodySpace {
		e.wantLarge()
	}
	return e.space
}

// wantLarge switches to a large pooled buffer and copies the held bytes there. Bytes that Next has
// returned do not move.
func (e *Exchange) wantLarge() {
	e.large = largeBuffers.Get().(*[largeBufferBytes]byte)
	copy(e.large[:], e.space[:e.held])
	e.space = e.large[:]
}

// AwaitBody waits until deadline (zero: for ever) for the first bytes of the body, or for the first
// whole event of an event stream, and holds them for Next and Read. Until then, nothing has been
// promised to the client. An event stream that ends without an event is an error, and so is a body
// that is cut before its first byte. After a timeout AwaitBody may be called again with a later
// deadline.
func (e *Exchange) AwaitBody(deadline time.Time) error { return e.awaitEvents(1, deadline) }

// AwaitSecond is AwaitBody for the first two events of an event stream. A stream that ends with the
// first event is no error. A second event that finds no room in the buffer is not waited for.
func (e *Exchange) AwaitSecond(deadline time.Time) error { return e.awaitEvents(2, deadline) }

func (e *Exchange) awaitEvents(n uint64, deadline time.Time) error {
	kept, idle := e.deadline, e.idle
	e.deadline, e.idle = deadline, 0
	defer func() { e.deadline, e.idle = kept, idle }()
	if !e.IsSSE() {
		return e.awaitBytes()
	}
	for e.scan.Events() < n {
		space := e.room()
		if e.held == len(space) {
			if e.large != nil {
				return nil // the buffer is full, so a long event has begun
			}
			e.wantLarge()
			space = e.space
		}
		m, err := e.pull(space[e.held:])
		if err == io.EOF && e.scan.Events() > 0 {
			return nil
		}
		if err == io.EOF {
			return newError(PhaseBody, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
		e.scan.Feed(space[e.held:e.held+m], ignoreEvent)
		e.held += m
	}
	return nil
}

func ignoreEvent(sse.Event) {}

func (e *Exchange) awaitBytes() error {
	if e.held > 0 {
		return nil
	}
	n, err := e.pull(e.room())
	if e.held = n; err == io.EOF {
		return nil
	}
	return err
}

// Held returns the bytes that AwaitBody holds. The bytes are valid until the next call on e.
func (e *Exchange) Held() []byte { return e.space[:e.held] }

// Hold makes p the next bytes of the body, in place of the held bytes and before those that were
// not read yet. If the body has been read to its end, its length is that of p from then on. Hold
// takes over the memory of p.
func (e *Exchange) Hold(p []byte) {
	if e.ended == io.EOF && e.length > 0 {
		e.length = int64(len(p))
	}
	if len(p) <= len(e.space) {
		copy(e.space, p)
	} else {
		e.space = p
	}
	e.held = len(p)
}

// pull puts the next decoded bytes at the front of p, at least one.
func (e *Exchange) pull(p []byte) (int, error) {
	for e.ended == nil {
		n, err := e.wire(p)
		if n == 0 {
			if err = e.endOf(err); isTimeout(err) {
				return 0, err // the body may continue after a timeout
			}
			e.ended = err
			break
		}
		if n = e.decode(p[:n]); n > 0 {
			return n, nil
		}
	}
	return 0, e.ended
}

// endOf returns the body's error for err, the end of the connection.
func (e *Exchange) endOf(err error) error {
	if err == io.EOF && !e.isCanceled() {
		if e.length == lengthUntilClose {
			return io.EOF
		}
		err = io.ErrUnexpectedEOF
	}
	return e.wrap(PhaseBody, err)
}

// decode removes the framing in place and returns the number of body bytes.
func (e *Exchange) decode(p []byte) int {
	switch {
	case e.length == lengthUntilClose:
		return len(p)
	case e.length == lengthChunked:
		n, used, err := e.chunks.decode(p)
		if err != nil {
			e.ended = e.wrap(PhaseBody, err)
		} else if e.chunks.done() {
			e.finish(used < len(p))
		}
		return n
	}
	n := int(min(e.left, int64(len(p))))
	if e.left -= int64(n); e.left == 0 {
		e.finish(n < len(p))
	}
	return n
}

// push takes the wire bytes in p, which other code has read, or the error of that read. push
// decodes p in place: m bytes of the body are at the front of p afterwards. push sets e.ended at
// the end of the body.
func (e *Exchange) push(p []byte, err error) (m int) {
	if len(p) == 0 {
		e.ended = e.endOf(err)
		return 0
	}
	return e.decode(p)
}

// wire puts raw bytes of the connection at the front of p.
func (e *Exchange) wire(p []byte) (int, error) {
	if len(e.rest) > 0 {
		n := copy(p, e.rest)
		e.rest = e.rest[n:]
		return n, nil
	}
	return e.receive(p)
}

// receive reads from the socket within the deadline and the idle timeout.
func (e *Exchange) receive(p []byte) (int, error) {
	limit := e.deadline
	if e.idle > 0 {
		limit = earlier(limit, time.Now().Add(e.idle))
	}
	e.c.reading.set(e.c.nc, limit)
	n, err := e.c.read(p)
	switch {
	case n > 0 || err == nil || !isTimeout(err) || e.isCanceled():
		return n, err
	case limit == e.deadline:
		return 0, ErrDeadline
	}
	return 0, ErrIdle
}
