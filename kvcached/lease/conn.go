//go:build linux

package lease

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/frame"
	"golang.org/x/sys/unix"
)

// conn is one connection. The goroutine in serve owns all of it except leases and ended.
type conn struct {
	server *Server
	net    *net.UnixConn
	raw    syscall.RawConn
	peer   listen.Peer
	user   *user

	greeted bool
	isDue   bool   // a deadline for the rest of a frame is set
	owner   string // owner of its pins
	writer  writer
	reads   []reading // at most residency.MaxReads

	leases leases
	ended  atomic.Bool // serve is over

	in    []byte // buffer of frames: small.in or long.in
	n     int    // in[:n] has been read
	out   []byte // answers to be written
	long  *long  // buffers for long frames; nil while the small ones suffice
	small struct {
		in  [512]byte
		out [256]byte
	}

	onReadable, onWritable func(fd uintptr) bool
	ioErr                  error
	written                int
}

var (
	errStalled  = errors.New("lease: client stalled")
	errPeerGone = errors.New("lease: client closed the connection")
)

// serve reads frames, carries them out and answers, until the connection ends.
func (c *conn) serve() {
	c.in, c.out = c.small.in[:], c.small.out[:0]
	c.onReadable, c.onWritable = c.readSome, c.writeSome
	_ = c.net.SetReadDeadline(time.Now().Add(c.server.o.FrameTimeout)) // until Hello
	err := c.step()
	for err == nil {
		err = c.step()
	}
	c.end(err)
}

// step waits for bytes, reads them and handles all complete frames.
func (c *conn) step() error {
	if err := c.read(); err != nil {
		return err
	}
	used := 0
	for {
		h, body, err := frame.Request(c.in[used:c.n])
		if errors.Is(err, frame.ErrIncomplete) {
			break
		}
		if err == nil {
			err = c.handle(h, body)
		}
		if err != nil {
			return c.refuse(h, err)
		}
		used += int(h.Size)
	}
	if err := c.flush(); err != nil {
		return err
	}
	return c.keep(used)
}

// keep moves the beginning of an incomplete frame to the front. It makes room for the rest and sets
// a deadline for it.
func (c *conn) keep(used int) error {
	c.n = copy(c.in, c.in[used:c.n])
	switch {
	case c.n == 0:
		c.shorten()
		c.due(false)
	case used > 0 || !c.isDue:
		c.due(true)
	}
	if c.n == len(c.in) || c.n >= 4 && frameSize(c.in) > len(c.in) {
		return c.lengthen()
	}
	return nil
}

// due sets or clears the deadline of a begun frame. Before Hello, the deadline of Hello stays.
func (c *conn) due(begun bool) {
	if !c.greeted || !begun && !c.isDue {
		return
	}
	at := time.Time{}
	if begun {
		at = time.Now().Add(c.server.o.FrameTimeout)
	}
	_ = c.net.SetReadDeadline(at)
	c.isDue = begun
}

func frameSize(b []byte) int {
	return int(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24)
}

// read waits for bytes and reads them.
func (c *conn) read() error {
	if c.server.ctx.Err() != nil {
		return ErrClosed
	}
	err := c.raw.Read(c.onReadable)
	if err == nil {
		err = c.ioErr
	}
	if c.server.ctx.Err() != nil {
		return ErrClosed
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.server.count.stalled.Add(1)
		return errStalled
	}
	return err
}

// readSome reads without waiting. The runtime's poller calls it whenever there may be bytes.
func (c *conn) readSome(fd uintptr) bool {
	n, err := unix.Read(int(fd), c.in[c.n:])
	for err == unix.EINTR {
		n, err = unix.Read(int(fd), c.in[c.n:])
	}
	if err == unix.EAGAIN {
		return false
	}
	c.ioErr = nil
	switch {
	case err != nil:
		c.ioErr = errors.Join(errPeerGone, err)
	case n == 0:
		c.ioErr = errPeerGone
	default:
		c.n += n
	}
	return true
}

// reserve makes room for an answer of n bytes.
func (c *conn) reserve(n int) error {
	if len(c.out)+n <= cap(c.out) {
		return nil
	}
	if err := c.flush(); err != nil || n <= cap(c.out) {
		return err
	}
	if err := c.lengthen(); err != nil {
		return err
	}
	c.out = c.long.out[:0]
	return nil
}

// flush writes the gathered answers.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	c.written = 0
	err := c.raw.Write(c.onWritable)
	if err == nil {
		err = c.ioErr
	}
	if err == nil && c.written < len(c.out) { // the client does not read its answers
		_ = c.net.SetWriteDeadline(time.Now().Add(c.server.o.WriteTimeout))
		_, err = c.net.Write(c.out[c.written:])
		_ = c.net.SetWriteDeadline(time.Time{})
	}
	c.out = c.out[:0]
	return c.writeError(err)
}

func (c *conn) writeError(err error) error {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.server.count.stalled.Add(1)
		return errStalled
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		return errors.Join(errPeerGone, err)
	}
	return err
}

// writeSome writes once, without waiting.
func (c *conn) writeSome(fd uintptr) bool {
	n, err := unix.Write(int(fd), c.out)
	for err == unix.EINTR {
		n, err = unix.Write(int(fd), c.out)
	}
	c.ioErr = nil
	if err != nil && err != unix.EAGAIN {
		c.ioErr = err
	}
	c.written = max(n, 0)
	return true
}

// attach writes the gathered answers, and then b together with a file.
func (c *conn) attach(b []byte, fd int) error {
	if err := c.flush(); err != nil {
		return err
	}
	_ = c.net.SetWriteDeadline(time.Now().Add(c.server.o.WriteTimeout))
	n, _, err := c.net.WriteMsgUnix(b, unix.UnixRights(fd), nil)
	if err == nil && n < len(b) {
		_, err = c.net.Write(b[n:])
	}
	_ = c.net.SetWriteDeadline(time.Time{})
	return c.writeError(err)
}

// refuse sends the client the error of its frame h. The connection ends, so later frames are not
// read.
func (c *conn) refuse(h frame.Header, err error) error {
	var bad *frame.Error
	if !errors.As(err, &bad) {
		return err
	}
	c.server.count.badFrames.Add(1)
	if c.reserve(frame.HeaderSize+len(bad.Text)) == nil {
		c.appendError(h.Seq, bad)
		_ = c.flush()
	}
	return err
}

func (c *conn) appendError(seq uint64, bad *frame.Error) {
	text := bad.Text[:min(len(bad.Text), frame.MaxText)]
	start := len(c.out)
	c.out = frame.Append(c.out, frame.Header{Op: frame.OpError, Status: bad.Status, Count: uint16(len(text)), Seq: seq})
	c.out = frame.End(append(c.out, text...), start)
}

// decline sends a client the reason why it is not served, and closes.
func (c *conn) decline(bad *frame.Error) {
	c.out, c.onWritable = c.small.out[:0], c.writeSome
	c.appendError(0, bad)
	_ = c.raw.Write(c.onWritable)
	c.net.Close()
}

// end closes the connection and frees everything that the client held. If the server ended the
// connection, running leases stay until they expire.
func (c *conn) end(err error) {
	c.shorten()
	gone := errors.Is(err, errPeerGone) || c.hungUp()
	c.net.Close()
	c.writer.close(c.server)
	c.endReads()
	if gone {
		ended, _ := c.expire(1<<63 - 1)
		c.server.count.takenBack.Add(uint64(ended))
	}
	c.ended.Store(true)
	if _, left := c.expire(frame.Monotonic() - int64(c.server.o.Grace)); left == 0 {
		c.server.leave(c)
	}
}

// hungUp tells whether the client has closed its end, even if bytes are left to read.
func (c *conn) hungUp() (gone bool) {
	err := c.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		_, _ = unix.Poll(p, 0)
		gone = p[0].Revents&unix.POLLHUP != 0
	})
	return err == nil && gone
}
