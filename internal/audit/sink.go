package audit

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/cognitora/dataplane/internal/logfile"
)

// FileMode is the mode of a new file: only its owner may read it.
const FileMode = 0o600

func open(o *Options) (logfile.Sink, error) {
	if o.To != "syslog" {
		return logfile.Open(o.To, FileMode)
	}
	s := &syslog{at: cmp.Or(o.socket, syslogSocket), program: o.Program}
	return s, s.dial()
}

// syslogSocket is where the host's syslog takes lines.
const syslogSocket = "/dev/log"

// authpriv is the priority of lines: facility authpriv, severity notice.
const authpriv = 10<<3 | 5

// syslogWait bounds the wait for a syslog that takes no lines.
const syslogWait = time.Second

// syslog is the host's syslog, a logfile.Sink. It dials again after an error.
type syslog struct {
	at, program string
	conn        net.Conn // nil: the last write has failed
}

func (s *syslog) dial() (err error) {
	if s.conn, err = net.DialTimeout("unixgram", s.at, syslogWait); err != nil {
		return fmt.Errorf("syslog: %w", err)
	}
	return nil
}

// Write writes a line. A syslog that takes none is an error after a second.
func (s *syslog) Write(line []byte) (int, error) {
	if s.conn != nil {
		err := s.send(line)
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return len(line), err
		}
	}
	if err := s.Reopen(); err != nil {
		return 0, err
	}
	return len(line), s.send(line)
}

func (s *syslog) send(line []byte) error {
	if err := s.conn.SetWriteDeadline(time.Now().Add(syslogWait)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s.conn, "<%d>%s %s[%d]: %s", authpriv, time.Now().Format(time.Stamp), s.program, os.Getpid(),
		line)
	return err
}

// Reopen dials again.
func (s *syslog) Reopen() error {
	s.Close()
	return s.dial()
}

// Close closes the socket.
func (s *syslog) Close() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.Close()
	s.conn = nil
	return err
}
