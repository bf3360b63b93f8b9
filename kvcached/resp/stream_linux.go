package resp

import (
	"io"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// prepare makes the stream use its own system calls. They move several pieces at once, and hold no
// buffer while they wait.
func (s *bufferedConn) prepare(raw syscall.RawConn) {
	s.raw = raw
	_, s.tcp = s.conn.(*net.TCPConn)
	s.tryRead, s.tryWrit = s.readOnce, s.writeOnce
}

const (
	lowWaterMax = 1 << 20
	lowWaterMin = 64 << 10
)

// waitFor tells TCP that n bytes of one value are still to come. TCP then wakes the connection for
// up to 1 MiB at once, because a wake-up costs as much as copying tens of KiB. 0 means any byte.
// Every other wait needs waitFor(0) before it. The caller reads first and calls waitFor for the
// rest, because often the whole value has come and waitFor is a system call.
func (s *bufferedConn) waitFor(n int) {
	if s.raw == nil || !s.tcp {
		return
	}
	if n < lowWaterMin {
		n = 0
	}
	if n = min(n, lowWaterMax); n == s.lowWater {
		return
	}
	s.lowWater = n
	_ = s.raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, max(n, 1))
	})
}

// rawRead is read with own system calls. Before each wait it gives the buffer back if p is nil and
// nothing is buffered.
func (s *bufferedConn) rawRead(p []byte) (int, error) {
	s.vec[0], s.done, s.failed = p, 0, nil
	err := s.raw.Read(s.tryRead)
	s.vec[0], s.vec[1] = nil, nil
	if err == nil {
		err = s.failed
	}
	return s.done, err
}

// readOnce is a system call of rawRead. It returns false if it must wait and be called again.
func (s *bufferedConn) readOnce(fd uintptr) bool {
	s.buffer()
	s.vec[1] = s.in[s.w:]
	n, errno := vector(unix.SYS_READV, fd, s.vec[:2])
	switch {
	case errno == 0 && n > 0:
		s.done = n
	case errno == 0:
		s.failed = io.EOF
	case errno == unix.EAGAIN:
		if s.vec[0] == nil {
			s.unbuffer()
		}
		s.arm()
		return false
	default:
		s.failed = errno
	}
	return true
}

// look reads without waiting, even after a deadline, and returns the number of bytes.
func (s *bufferedConn) look(p []byte) int {
	s.buffer()
	s.vec[0], s.vec[1], s.done = p, s.in[s.w:], 0
	_ = s.raw.Control(func(fd uintptr) {
		if n, errno := vector(unix.SYS_READV, fd, s.vec[:2]); errno == 0 {
			s.done = n
		}
	})
	s.vec[0], s.vec[1] = nil, nil
	return s.done
}

// rawWrite is write with own system calls. The first wait sets the deadline.
func (s *bufferedConn) rawWrite(head, payload, tail []byte) error {
	s.vec = [3][]byte{head, payload, tail}
	s.done, s.failed = 0, nil
	err := s.raw.Write(s.tryWrit)
	if s.done > 0 {
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
	s.vec = [3][]byte{}
	if err == nil {
		err = s.failed
	}
	return err
}

// writeOnce writes the pieces in vec. It returns false if it must wait and be called again. done
// counts the waits.
func (s *bufferedConn) writeOnce(fd uintptr) bool {
	for len(s.vec[0])+len(s.vec[1])+len(s.vec[2]) > 0 {
		n, errno := vector(unix.SYS_WRITEV, fd, s.vec[:])
		switch errno {
		case 0:
			for i := range s.vec {
				m := min(n, len(s.vec[i]))
				s.vec[i] = s.vec[i][m:]
				n -= m
			}
		case unix.EAGAIN:
			if s.done == 0 {
				_ = s.conn.SetWriteDeadline(time.Now().Add(s.server.o.Stall))
			}
			s.done++
			return false
		default:
			s.failed = errno
			return true
		}
	}
	return true
}
