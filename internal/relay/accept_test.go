//go:build linux

package relay

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

// scriptedListener returns its errors from Accept in turn. A nil error means a connection.
type scriptedListener struct {
	net.Listener
	script []error
}

func (l *scriptedListener) Accept() (net.Conn, error) {
	err := l.script[0]
	l.script = l.script[1:]
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", err)}
	}
	c, _ := net.Pipe()
	return c, nil
}

func TestAcceptOutlivesAShortageOfDescriptors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		script := &scriptedListener{script: []error{
			syscall.EMFILE, syscall.ENFILE, syscall.ECONNABORTED, syscall.ENOBUFS, nil, syscall.EMFILE, nil,
			syscall.EINVAL,
		}}
		l := (&Watcher{}).Listen(script, ListenOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		for range 2 {
			if c, err := l.Accept(); err != nil {
				t.Fatal(err)
			} else {
				c.Close()
			}
		}
		if _, err := l.Accept(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("an error that lasts: got %v", err)
		}
		if n := strings.Count(out.String(), "\n"); n != 1 || !strings.Contains(out.String(), "too many open files") {
			t.Errorf("%d log lines, want 1:\n%s", n, out.String())
		}
	})
}

func TestLocalShortageIsAKindOfItsOwn(t *testing.T) {
	for _, cause := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		err := newError(PhaseDial, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", cause)})
		if err.Kind != KindLocal || err.Kind.String() != "local" {
			t.Errorf("%v: kind %s, want local", cause, err.Kind)
		}
	}
	if k := newError(PhaseDial, ErrPoolFull).Kind; k != KindLocal {
		t.Errorf("full pool: kind %s, want local", k)
	}
}
