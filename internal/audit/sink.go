package audit

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// sink is a place for lines. One goroutine uses it.
type sink interface {
	write(line []byte) error
	reopen() error
	close() error
}

func open(o *Options) (sink, error) {
	switch o.To {
	case "":
		return nil, errors.New("audit: no file; name one, or -, or syslog")
	case "-":
		return stream{os.Stdout}, nil
	case "syslog":
		s := &syslog{at: o.socket, program: o.Program}
		if s.at == "" {
			s.at = syslogSocket
		}
		return s, s.dial()
	}
	f := &file{name: o.To}
	return f, f.reopen()
}

// stream is a stream that the log borrows.
type stream struct{ *os.File }

func (s stream) write(line []byte) error {
	_, err := s.Write(line)
	return err
}
func (s stream) reopen() error { return nil }
func (s stream) close() error  { return nil }

// file is a file that only its owner may read.
type file struct {
	name string
	f    *os.File
}

func (f *file) write(line []byte) error {
	_, err := f.f.Write(line)
	return err
}

func (f *file) reopen() error {
	next, err := os.OpenFile(f.name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if f.f != nil {
		err = f.f.Close()
	}
	f.f = next
	return err
}

func (f *file) close() error { return f.f.Close() }

// syslogSocket is where the host's syslog takes lines.
const syslogSocket = "/dev/log"

// authpriv is the priority of lines: facility authpriv, severity notice.
const authpriv = 10<<3 | 5

// syslogWait bounds the wait for a syslog that takes no lines.
const syslogWait = time.Second

// syslog is the host's syslog. It dials again after an error.
type syslog struct {
	at, program string
	conn        net.Conn // nil: the last write has failed
}

func (s *syslog) dial() (err error) {
	if s.conn, err = net.DialTimeout("unixgram", s.at, syslogWait); err != nil {
		return fmt.Errorf("audit: syslog: %w", err)
	}
	return nil
}

func (s *syslog) write(line []byte) error {
	if s.conn != nil && s.send(line) == nil {
		return nil
	}
	if err := s.reopen(); err != nil {
		return err
	}
	return s.send(line)
}

func (s *syslog) send(line []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(syslogWait)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.conn, "<%d>%s %s[%d]: %s", authpriv, time.Now().Format(time.Stamp), s.program, os.Getpid(),
		line)
	return err
}

func (s *syslog) reopen() error {
	s.close()
	return s.dial()
}

func (s *syslog) close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}
