package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	bufferSize = 16 << 10 // of what is read ahead, and of replies that are batched
	copyMax    = 8 << 10  // values up to here are copied into the batch
)

var (
	inputs  = sync.Pool{New: func() any { return new([bufferSize]byte) }}
	outputs = sync.Pool{New: func() any { b := make([]byte, 0, bufferSize); return &b }}
	crlf    = []byte("\r\n")
)

// errStalled says that a command or a reply has taken longer than Stall.
var errStalled = errors.New("resp: the client has stalled")

// errIdle says that the server drains while no command has begun.
var errIdle = errors.New("resp: idle")

// bufferedConn holds a connection's bytes: what has been read and not yet consumed, and replies not
// yet written. While it waits for a command it holds no buffer.
type bufferedConn struct {
	conn   net.Conn
	raw    syscall.RawConn // nil: TLS, and other systems
	server *Server

	in   *[bufferSize]byte // nil: nothing is buffered
	r, w int               // in[r:w] has not been consumed

	out   *[]byte // nil: nothing to write
	fails error   // of writing: nothing is written after it

	midCommand bool      // a command has begun: Stall holds
	armed      bool      // until is the deadline of this command or this wait
	until      time.Time // the read deadline as set last; zero: none
	looked     bool      // see lastLook
	tcp        bool
	lowWater   int // SO_RCVLOWAT; 0: not set, which is 1

	vec              [3][]byte // of the system call in progress
	done             int       // its result
	failed           error
	tryRead, tryWrit func(fd uintptr) bool
}

func newBufferedConn(s *Server, nc net.Conn) *bufferedConn {
	st := &bufferedConn{conn: nc, server: s}
	if plain, ok := nc.(syscall.Conn); ok {
		if raw, err := plain.SyscallConn(); err == nil {
			st.prepare(raw)
		}
	}
	return st
}

// interrupt makes a connection that waits for a command return errIdle. It is called after draining
// was set.
func (s *bufferedConn) interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

// began tells that a command has begun to arrive, or that the connection waits for one. The next
// wait gets a new deadline.
func (s *bufferedConn) began(command bool) { s.midCommand, s.armed = command, false }

// arm sets the deadline of a read that is about to wait, once for each command and each wait.
func (s *bufferedConn) arm() {
	if s.armed {
		return
	}
	s.armed = true
	if !s.midCommand && s.until.IsZero() {
		return
	}
	s.until = time.Time{}
	if s.midCommand {
		s.until = time.Now().Add(s.server.o.Stall)
	}
	_ = s.conn.SetReadDeadline(s.until)
	if s.server.draining.Load() {
		s.interrupt()
	}
}

// again tells whether to repeat a failed read. It does if the deadline was an earlier one, or if a
// drain came in the middle of a command.
func (s *bufferedConn) again(err error) bool {
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) || s.server.draining.Load() && !s.midCommand {
		return false
	}
	if !s.armed {
		s.until = time.Time{}
	} else if !s.until.IsZero() && !time.Now().Before(s.until) {
		return false
	}
	_ = s.conn.SetReadDeadline(s.until)
	return true
}

// lastLook is true once, if the server drains and no command has begun. Bytes that came before the
// drain interrupted the wait are still a running operation.
func (s *bufferedConn) lastLook() bool {
	if s.looked || s.midCommand || s.raw == nil || !s.server.draining.Load() {
		return false
	}
	s.looked = true
	return true
}

// readError turns a passed deadline into errStalled or errIdle.
func (s *bufferedConn) readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if s.midCommand {
			return errStalled
		}
		return errIdle
	}
	return err
}

// buffer provides the input buffer, with room unless it is full of unconsumed bytes.
func (s *bufferedConn) buffer() {
	if s.in == nil {
		s.in = inputs.Get().(*[bufferSize]byte)
		s.r, s.w = 0, 0
	} else if s.r == s.w {
		s.r, s.w = 0, 0
	} else if s.w == bufferSize && s.r > 0 {
		s.w = copy(s.in[:], s.in[s.r:s.w])
		s.r = 0
	}
}

// unbuffer gives the buffer back if it is empty.
func (s *bufferedConn) unbuffer() {
	if s.in != nil && s.r == s.w {
		inputs.Put(s.in)
		s.in = nil
	}
}

// buffered is what has been read and not consumed.
func (s *bufferedConn) buffered() []byte {
	if s.in == nil {
		return nil
	}
	return s.in[s.r:s.w]
}

// fill reads more into the buffer, at least one byte. The buffer must not be full of unconsumed
// bytes.
func (s *bufferedConn) fill() error {
	n, err := s.read(nil)
	if n == 0 && err == nil {
		err = io.EOF
	}
	if n == 0 {
		return s.readError(err)
	}
	s.w += n
	return nil
}

// readFull reads len(p) bytes and calls filled with each piece's length. Bytes after them that have
// come already go into the buffer.
func (s *bufferedConn) readFull(p []byte, filled func(int)) error {
	n := copy(p, s.buffered())
	s.r += n
	if n > 0 {
		filled(n)
	}
	s.buffer()
	for n < len(p) {
		m, err := s.read(p[n:])
		if m == 0 && err == nil {
			err = io.ErrUnexpectedEOF
		}
		if m == 0 {
			return s.readError(err)
		}
		own := min(m, len(p)-n)
		filled(own)
		n += own
		s.w += m - own
		s.waitFor(len(p) - n)
	}
	return nil
}

// read reads once: into p, if there is one, and then into the buffer, with one system call if
// possible.
func (s *bufferedConn) read(p []byte) (n int, err error) {
	for {
		if s.raw != nil {
			n, err = s.rawRead(p)
		} else {
			s.arm()
			if p == nil {
				s.buffer()
				p = s.in[s.w:]
			}
			n, err = s.conn.Read(p)
		}
		if n > 0 || !s.again(err) {
			if n == 0 && s.lastLook() {
				if m := s.look(p); m > 0 {
					n, err = m, nil
				}
			}
			return n, err
		}
	}
}

// batch is the replies that wait to be written.
func (s *bufferedConn) batch() []byte {
	if s.out == nil {
		s.out = outputs.Get().(*[]byte)
	}
	return *s.out
}

// setBatch puts the batch back after an append, and writes it if it has grown large.
func (s *bufferedConn) setBatch(b []byte) {
	*s.out = b
	if len(b) >= bufferSize {
		s.flush()
	}
}

// flush writes the batch.
func (s *bufferedConn) flush() { s.flushWith(nil) }

// flushWith writes the batch, then payload, then CRLF unless payload is empty. payload is free
// afterwards.
func (s *bufferedConn) flushWith(payload []byte) {
	var head []byte
	if s.out != nil {
		head = *s.out
	}
	if s.fails == nil && len(head)+len(payload) > 0 {
		var tail []byte
		if len(payload) > 0 {
			tail = crlf
		}
		if err := s.write(head, payload, tail); err != nil {
			s.fails = err
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.fails = errStalled
			}
		}
	}
	if s.out != nil {
		if cap(head) <= 4*bufferSize {
			*s.out = head[:0]
			outputs.Put(s.out)
		}
		s.out = nil
	}
}

// write writes three pieces within Stall.
func (s *bufferedConn) write(head, payload, tail []byte) error {
	if s.raw != nil {
		return s.rawWrite(head, payload, tail)
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(s.server.o.Stall))
	for _, piece := range [...][]byte{head, payload, tail} {
		if len(piece) > 0 {
			if _, err := s.conn.Write(piece); err != nil {
				return err
			}
		}
	}
	return nil
}

// release gives the buffers back.
func (s *bufferedConn) release() {
	s.r, s.w = 0, 0
	s.unbuffer()
	if s.out != nil {
		s.out = nil
	}
}
