package instant

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// streamedAnswer sends one answer, token by token.
type streamedAnswer struct {
	engine  *Engine
	conn    net.Conn
	raw     syscall.RawConn
	serial  uint32
	event   []byte
	stampAt int
	closing []byte
	pace    time.Duration
	tokens  int64
	sent    int64
	due     time.Time

	try    func(fd uintptr) bool // one non-blocking write of event
	wrote  int
	tryErr error
	over   atomic.Bool // it has ended, or the client has left
}

// newStreamedAnswer sends the head and the role.
func newStreamedAnswer(e *Engine, c net.Conn, q *request, serial uint32) (*streamedAnswer, error) {
	s := &streamedAnswer{
		engine: e, conn: c, serial: serial, pace: time.Duration(q.pace) * time.Microsecond, tokens: int64(q.tokens),
		closing: closing(serial, q),
	}
	s.event, s.stampAt = token(serial, q.ids)
	var err error
	if s.raw, err = c.(*net.TCPConn).SyscallConn(); err != nil {
		return nil, err
	}
	s.try = func(fd uintptr) bool {
		s.wrote, s.tryErr = syscall.Write(int(fd), s.event)
		return true
	}
	_, err = c.Write(opening(serial, q))
	return s, err
}

// climb sends a token for each step.
func (s *streamedAnswer) climb() error {
	for ; s.sent < s.tokens; s.sent++ {
		select {
		case <-s.engine.steps:
		case <-s.engine.closing:
			return net.ErrClosed
		}
		s.stamp(time.Now())
		if _, err := s.conn.Write(s.event); err != nil {
			return err
		}
		s.engine.tokens.Add(1)
	}
	_, err := s.conn.Write(s.closing)
	return err
}

// floodTokens are written at once if no pace is set.
const floodTokens = 16

// flood sends all tokens as fast as the client takes them.
func (s *streamedAnswer) flood() error {
	buf := make([]byte, 0, floodTokens*len(s.event))
	for s.sent < s.tokens {
		buf = buf[:0]
		now := time.Now()
		for range floodTokens {
			if s.sent == s.tokens {
				break
			}
			s.stamp(now)
			buf = append(buf, s.event...)
			s.sent++
		}
		if _, err := s.conn.Write(buf); err != nil {
			return err
		}
		s.engine.tokens.Add(int64(len(buf) / len(s.event)))
	}
	_, err := s.conn.Write(s.closing)
	return err
}

// end stops the stream and reports whether it was still running.
func (s *streamedAnswer) end() bool {
	running := s.over.CompareAndSwap(false, true)
	if running {
		_ = s.conn.Close()
	}
	return running
}

// send sends the due token and schedules the next one.
func (s *streamedAnswer) send(p *pacer) {
	if s.over.Load() {
		return
	}
	if s.sent == s.tokens {
		if s.over.CompareAndSwap(false, true) {
			s.engine.writers.Go(func() { _, _ = s.conn.Write(s.closing) })
		}
		return
	}
	s.stamp(time.Now())
	if err := s.raw.Write(s.try); err != nil {
		return
	}
	s.sent++
	s.engine.tokens.Add(1)
	if s.tryErr == nil && s.wrote == len(s.event) {
		p.add(s, s.due.Add(s.pace))
		return
	}
	if s.tryErr != nil && s.tryErr != syscall.EAGAIN {
		return // the reading side notices a broken connection
	}
	rest := s.event[max(s.wrote, 0):]
	s.engine.writers.Go(func() { // waits for a full socket on another goroutine
		if _, err := s.conn.Write(rest); err == nil {
			p.add(s, time.Now().Add(s.pace))
		}
	})
}
