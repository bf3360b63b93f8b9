package relay

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	readBufferBytes  = 4 << 10  // size of the first read buffer, which grows to maxHeadBytes for a long head
	keepBufferBytes  = 16 << 10 // larger buffers are not kept between exchanges
	flatWriteBytes   = 16 << 10 // without writev, segments are joined up to this size
	earlyAnswerBytes = 64 << 10 // an early answer is looked for while a larger write stalls
	earlyAnswerEvery = 250 * time.Millisecond
	// salvageWait is how long an answer may be read after the write has failed.
	salvageWait = 50 * time.Millisecond
	// peekAfterIdle is the least idle time after which a connection is inspected before use. A
	// stale connection that was idle for less is noticed in use, and replaced.
	peekAfterIdle = 50 * time.Millisecond
	// staleWindow is the time after a write in which a stale connection is recognised. A server
	// that has closed an idle connection reports the close within a round trip.
	staleWindow        = time.Second
	defaultDialTimeout = 2 * time.Second
)

// conn is one upstream connection. A conn is used by one Exchange at a time; only close, inspect
// and look may be called from elsewhere.
type conn struct {
	to     *destination
	nc     net.Conn // for reads and writes: the socket, or TLS over the socket
	socket net.Conn
	raw    syscall.RawConn // nil for in-memory connections
	vector bool            // true if nc has writev

	buf       []byte // read buffer
	flat      []byte // buffer for joined writes
	served    int    // times that the conn was put into the pool
	idleSince time.Time
	reading   deadline
	writing   deadline

	peek    func(fd uintptr)
	waiting peeked // result of the last peek

	watch  bool                     // true if its pool has Watch
	port   uint16                   // local port; 0: none
	place  int                      // index in Pool.busy plus 1; 0: not in Pool.busy
	owner  atomic.Pointer[Exchange] // the last user, which may have released the conn
	hand   sync.Mutex               // held to replace, close or inspect the descriptor
	parked parked
	wire   *wire // between TLS and the socket; nil without TLS
}

// peeked is the state of a socket's receive queue.
type peeked uint8

const (
	peekNothing peeked = iota // open, nothing to read
	peekBytes                 // bytes to read
	peekClosed                // a FIN or an error
)

func newConn(to *destination, nc, socket net.Conn) *conn {
	c := &conn{to: to, nc: nc, buf: make([]byte, readBufferBytes), writing: deadline{writes: true}}
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		c.vector = true
	}
	c.peek = func(fd uintptr) { c.waiting = peekSocket(fd) }
	c.use(socket)
	return c
}

// use makes c a connection over socket.
func (c *conn) use(socket net.Conn) {
	c.socket, c.raw = socket, nil
	if at, ok := socket.LocalAddr().(*net.TCPAddr); ok {
		c.port = uint16(at.Port)
	}
	if sc, ok := socket.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			c.raw = raw
		}
	}
}

// look returns the state of the socket's receive queue without consuming it.
func (c *conn) look() peeked {
	if c.raw == nil {
		return peekNothing
	}
	if err := c.raw.Control(c.peek); err != nil {
		return peekClosed
	}
	return c.waiting
}

// usable reports whether an idle connection may carry another request. A server must send nothing
// on an idle connection. Bytes on an idle connection are a close alert or a protocol error, so they
// make the connection unusable like a FIN.
func (c *conn) usable(now time.Time) bool {
	return now.Sub(c.idleSince) < peekAfterIdle || c.look() == peekNothing
}

func (c *conn) close() {
	c.hand.Lock()
	defer c.hand.Unlock()
	if !c.parked.end() {
		c.socket.Close()
	}
}

// setWriteDeadline bounds write. For TLS the deadline is set immediately, because TLS cannot retry
// a write after a timeout.
func (c *conn) setWriteDeadline(t time.Time) {
	if c.wire != nil {
		c.writing.forget()
	}
	c.writing.set(c.nc, t)
}

// read does one read within the deadline reading.
func (c *conn) read(p []byte) (int, error) {
	for {
		n, err := c.nc.Read(p)
		if n > 0 || err == nil || !isTimeout(err) || !c.reading.early(c.nc) {
			return n, err
		}
	}
}

// write sends the rest of *v, as one writev if the connection has it.
func (c *conn) write(v *net.Buffers) error {
	for c.vector {
		if _, err := v.WriteTo(c.nc); err == nil || !isTimeout(err) || !c.writing.early(c.nc) {
			return err
		}
	}
	for len(*v) > 0 {
		if err := c.writeFlat(v); err != nil {
			return err
		}
	}
	return nil
}

// writeFlat sends the first segments as one write of at most flatWriteBytes. writeFlat sends a
// larger segment alone and without a copy.
func (c *conn) writeFlat(v *net.Buffers) error {
	c.flat = c.flat[:0]
	for len(*v) > 0 && len(c.flat)+len((*v)[0]) <= flatWriteBytes {
		c.flat = append(c.flat, (*v)[0]...)
		*v = (*v)[1:]
	}
	if len(c.flat) > 0 {
		_, err := c.nc.Write(c.flat)
		return err
	}
	n, err := c.nc.Write((*v)[0])
	if (*v)[0] = (*v)[0][n:]; len((*v)[0]) == 0 {
		*v = (*v)[1:]
	}
	return err
}

// send writes the size bytes of *v before deadline. early is true if the server answered before it
// had read all bytes; send then drops the rest. Over TLS, an early answer is noticed only if the
// server also closes the connection, since a TLS write cannot be resumed after an interruption.
func (c *conn) send(v *net.Buffers, size int, deadline time.Time) (early bool, err error) {
	probe := c.raw != nil && c.wire == nil && size >= earlyAnswerBytes
	for {
		step := deadline
		if probe {
			step = earlier(deadline, time.Now().Add(earlyAnswerEvery))
		}
		c.setWriteDeadline(step)
		if err = c.write(v); err == nil {
			return false, nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) || step == deadline {
			return false, err
		}
		if c.look() == peekBytes {
			return true, nil
		}
	}
}

// salvage tries to read an answer that was sent before our write broke the connection. salvage
// returns how many bytes are at the front of c.buf.
func (c *conn) salvage() int {
	c.reading.set(c.nc, time.Now().Add(salvageWait))
	n, _ := c.read(c.buf)
	return n
}

// idled prepares the connection for the idle list.
func (c *conn) idled(now time.Time) {
	c.served++
	c.idleSince = now
	if cap(c.buf) > keepBufferBytes {
		c.buf = make([]byte, readBufferBytes)
	}
	c.buf = c.buf[:cap(c.buf)]
}

// earlier returns the earlier of two deadlines. The zero time means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
