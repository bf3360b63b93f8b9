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
	bufferSize = 16 << 10 // bytes of the input buffer, and of the batch of replies
	copyMax    = 8 << 10  // bytes of the longest value that is copied into the batch
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

// bufferedConn buffers a connection's unconsumed input and its unwritten replies. It holds no
// buffer while it waits for a command.
type bufferedConn struct {
	conn   net.Conn
	raw    syscall.RawConn // nil: TLS, and other systems
	server *Server

	in   *[bufferSize]byte // nil: nothing is buffered
	r, w int               // in[r:w] has not been consumed

	out   *[]byte // nil: nothing to write
	fails error   // error of a write; nothing is written after it

	midCommand bool      // a command has begun to arrive, so Stall bounds the reads
	armed      bool      // until is the deadline of this command or this wait
	until      time.Time // the last read deadline; zero: none
	looked     bool      // see lastLook
	tcp        bool
	lowWater   int // SO_RCVLOWAT; 0: the kernel's default, 1

	vec              [3][]byte // pieces of the system call in progress
	done             int       // result of the system call
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

// interrupt makes a read that waits for a command return errIdle. The caller has set draining.
func (s *bufferedConn) interrupt() { _ = s.conn.SetReadDeadline(time.Unix(1, 0)) }

// began notes that a command has begun to arrive, or that the connection waits for one. The next
// wait gets a new deadline.
func (s *bufferedConn) began(command bool) { s.midCommand, s.armed = command, false }

// arm sets the deadline of a read that is about to wait. It does so once for each command and each
// wait.
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

// again tells whether to repeat a failed read. A read is repeated if its deadline was an old one,
// or if a drain interrupted it in the middle of a command.
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

// lastLook returns true once, if the server drains and no command has begun. Bytes that came before
// the drain interrupted the wait must still be executed.
func (s *bufferedConn) lastLook() bool {
	if s.looked || s.midCommand || s.raw == nil || !s.server.draining.Load() {
		return false
	}
	s.looked = true
	return true
}

// readError turns the error of a passed deadline into errStalled or errIdle.
func (s *bufferedConn) readError(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		if s.midCommand {
			return errStalled
		}
		return errIdle
	}
	return err
}

// buffer gets the input buffer and makes room in it, unless it is full of unconsumed bytes.
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

// buffered returns the input that is not consumed.
func (s *bufferedConn) buffered() []byte {
	if s.in == nil {
		return nil
	}
	return s.in[s.r:s.w]
}

// fill reads at least one byte into the buffer, which must not be full of unconsumed bytes.
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

// readFull reads len(p) bytes and calls filled with the length of each piece. Later bytes that have
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

// read reads once, into p unless it is nil, and then into the buffer. It uses one system call if
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

// batch returns the replies that wait to be written.
func (s *bufferedConn) batch() []byte {
	if s.out == nil {
		s.out = outputs.Get().(*[]byte)
	}
	return *s.out
}

// setBatch puts the batch back after an append. It writes a batch of at least bufferSize bytes.
func (s *bufferedConn) setBatch(b []byte) {
	*s.out = b
	if len(b) >= bufferSize {
		s.flush()
	}
}

// flush writes the batch.
func (s *bufferedConn) flush() { s.flushWith(nil) }

// flushWith writes the batch and payload, with CRLF behind payload unless it is empty. The caller
// may free payload afterwards.
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

// write writes three pieces. The client must take them within Stall.
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
	s.out = nil
}
