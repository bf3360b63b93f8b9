package etcdserver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcd keeps etcdFiles descriptors of the process's limit to itself, and refuses to start with
// fewer. It takes one more for each client: otherFiles is what the smallest fleet beside it needs.
const (
	etcdFiles  = 150
	otherFiles = 106
)

// ErrFiles says that this process may open too few files.
var ErrFiles = errors.New("too few open files are allowed")

// checkFiles finds out before etcd does, which would end the process.
func checkFiles() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur >= etcdFiles+otherFiles {
		return nil
	}
	return fmt.Errorf("%w: %d, and %d are needed; raise the limit with `ulimit -n %d` (LimitNOFILE= in a systemd unit)",
		ErrFiles, l.Cur, etcdFiles+otherFiles, 4*(etcdFiles+otherFiles))
}

// ends has etcd's log say what would end the process; the goroutine that says it stops there in its
// place.
type ends struct {
	fatal chan error // capacity 1: what comes after the first is a consequence of it
	any   atomic.Bool
}

func newEnds() *ends { return &ends{fatal: make(chan error, 1)} }

// met tells whether anything fatal has been met.
func (e *ends) met() bool { return e.any.Load() }

// OnWrite is called with the entry that is fatal, once it is in the log.
func (e *ends) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	said := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(said)
	}
	err := errors.New(entry.Message)
	if cause, ok := said.Fields["error"]; ok {
		err = fmt.Errorf("%s: %v", entry.Message, cause)
	}
	e.any.Store(true)
	select {
	case e.fatal <- err:
	default:
	}
	select {} // what etcd has deferred counts on the process having ended
}

// logger writes warnings and errors to the file.
func (e *ends) logger(file string) (*zap.Logger, error) {
	c := zap.NewProductionConfig()
	c.Level, c.Sampling, c.DisableStacktrace = zap.NewAtomicLevelAt(zap.WarnLevel), nil, true
	c.OutputPaths, c.ErrorOutputPaths = []string{file}, []string{file}
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	return c.Build(zap.WithFatalHook(e), zap.WithPanicHook(e))
}
