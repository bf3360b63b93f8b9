package etcdserver

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// etcd reserves etcdFiles descriptors of the process's limit for itself, and refuses to start with
// fewer. etcd uses one more for each client. otherFiles is the need of the smallest fleet in the
// same process.
const (
	etcdFiles  = 150
	otherFiles = 106
)

// ErrFiles means that this process may open too few files.
var ErrFiles = errors.New("too few open files are allowed")

// checkFiles checks the limit before etcd does, because etcd would end the process.
func checkFiles() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || l.Cur >= etcdFiles+otherFiles {
		return nil
	}
	return fmt.Errorf("%w: %d, and %d are needed; raise the limit with `ulimit -n %d` (LimitNOFILE= in a systemd unit)",
		ErrFiles, l.Cur, etcdFiles+otherFiles, 4*(etcdFiles+otherFiles))
}

// ends takes the place of process exits in etcd: etcd logs a fatal error, and the goroutine that
// logs it stops instead of ending the process.
type ends struct {
	fatal chan error // capacity 1: later errors follow from the first
	any   atomic.Bool
}

func newEnds() *ends { return &ends{fatal: make(chan error, 1)} }

// met tells whether etcd has logged a fatal error.
func (e *ends) met() bool { return e.any.Load() }

// OnWrite is called with a fatal log entry after it is logged.
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
	select {} // deferred calls of etcd would assume that the process has ended
}

// logger writes warnings and errors to the file.
func (e *ends) logger(file string) (*zap.Logger, error) {
	c := zap.NewProductionConfig()
	c.Level, c.Sampling, c.DisableStacktrace = zap.NewAtomicLevelAt(zap.WarnLevel), nil, true
	c.OutputPaths, c.ErrorOutputPaths = []string{file}, []string{file}
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	return c.Build(zap.WithFatalHook(e), zap.WithPanicHook(e))
}
