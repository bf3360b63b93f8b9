package telemetry

import (
	"context"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ticks waits for intervals with a kernel timer, through Go's network poller, which wakes one
// thread. A timer of Go's runtime also wakes the runtime's monitor, which stays awake for a while
// and doubles the cost.
type ticks struct {
	file *os.File // descriptor of file
	fd   int
	conn syscall.RawConn
	read func(fd uintptr) bool
	at   [8]byte // buffer for the number of passed intervals
}

func newTicks(interval time.Duration) (*ticks, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	t := &ticks{file: os.NewFile(uintptr(fd), "timer"), fd: fd}
	t.set(interval)
	if t.conn, err = t.file.SyscallConn(); err != nil {
		_ = t.file.Close()
		return nil, err
	}
	t.read = func(fd uintptr) bool {
		// The read does not block, so the scheduler need not know of it.
		_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&t.at)), unsafe.Sizeof(t.at))
		return errno != unix.EAGAIN
	}
	return t, nil
}

// set changes the interval, and begins the first one now.
func (t *ticks) set(interval time.Duration) {
	every := unix.NsecToTimespec(int64(interval))
	// fails only for negative times
	_ = unix.TimerfdSettime(t.fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil)
}

// next waits for the end of an interval. next returns false when ctx has ended.
func (t *ticks) next(ctx context.Context) bool {
	return t.conn.Read(t.read) == nil && ctx.Err() == nil
}

// stopWith makes the end of ctx interrupt a waiting next.
func (t *ticks) stopWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = t.file.SetReadDeadline(time.Unix(1, 0)) })
}

func (t *ticks) close() { _ = t.file.Close() }
