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
	readBufferBytes  = 4 << 10  // first read buffer; a head may grow it to maxHeadBytes
	keepBufferBytes  = 16 << 10 // larger ones are not kept between exchanges
	flatWriteBytes   = 16 << 10 // segments are gathered up to this size where there is no writev
	earlyAnswerBytes = 64 << 10 // larger requests look for an early answer when the write stalls
	earlyAnswerEvery = 250 * time.Millisecond
	// salvageWait is how long reading an answer may take after the write has failed.
	salvageWait = 50 * time.Millisecond
	// peekAfterIdle: connections that were idle for less are used without a look
	// at them; replacement covers the rest.
	peekAfterIdle = 50 * time.Millisecond
	// staleWindow: a server that closed an idle connection says so within a round trip.
	staleWindow        = time.Second
	defaultDialTimeout = 2 * time.Second
)

// conn is one upstream connection. It is used by one Exchange at a time; only
// close, inspect and look may be called from elsewhere.
type conn struct {
	to     *destination
	nc     net.Conn // what is read and written: the socket, or TLS over it
	socket net.Conn
	raw    syscall.RawConn // nil for in-memory connections
	vector bool            // nc takes a writev

	buf       []byte // read buffer
	flat      []byte // scratch for gathered writes
	served    int    // times that it has been put into the pool
	idleSince time.Time
	reading   deadline
	writing   deadline

	peek    func(fd uintptr)
	waiting peeked // what the last peek found

	watch  bool                     // its pool has Watch
	port   uint16                   // of this end; 0: it has none
	place  int                      // in Pool.busy, counted from 1; 0: not in it
	owner  atomic.Pointer[Exchange] // the last that used it; it may have let go of it
	hand   sync.Mutex               // held to replace, close or inspect the descriptor
	parked parked
	wire   *wire // between TLS and the socket; nil without TLS
}

// peeked is the state of a socket's receive queue.
type peeked uint8

const (
	peekNothing peeked = iota // open, nothing to read
	peekBytes                 // something to read
	peekClosed                // FIN or error
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

// use makes socket what c is a connection over.
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

// look says what waits in the socket without consuming it.
func (c *conn) look() peeked {
	if c.raw == nil {
		return peekNothing
	}
	if err := c.raw.Control(c.peek); err != nil {
		return peekClosed
	}
	return c.waiting
}

// usable reports whether an idle connection may carry another request. A
// server has nothing to say on an idle connection: bytes there are a
// close alert or a protocol error, so they disqualify as well as a FIN does.
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

// setWriteDeadline bounds write. TLS is told at once: it cannot go on after a
// write that was in time after all.
func (c *conn) setWriteDeadline(t time.Time) {
	if c.wire != nil {
		c.writing.forget()
	}
	c.writing.set(c.nc, t)
}

// read is one read within reading.
func (c *conn) read(p []byte) (int, error) {
	for {
		n, err := c.nc.Read(p)
		if n > 0 || err == nil || !isTimeout(err) || !c.reading.early(c.nc) {
			return n, err
		}
	}
}

// write sends what is left in *v, as one writev where the connection can.
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

// writeFlat sends the first segments as one write of at most flatWriteBytes;
// a segment that is larger by itself is sent from where it lies.
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

// send writes size bytes in *v before deadline. early is true when the server
// answered before it had read everything: the rest is then not sent. Over TLS
// such an answer is seen only when the server also closes, since a TLS write
// that was interrupted cannot be taken up again.
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

// salvage tries to read an answer that was sent before the connection broke
// under our write. It returns the bytes placed at the front of c.buf.
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

// earlier returns the earlier of two deadlines, the zero time being never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
