package telemetry

import (
	"context"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ticks tells when an interval has passed, with a timer of the kernel that Go's network poller
// waits for: one thread wakes. For a timer of Go's own the runtime's monitor wakes too, and stays
// awake for a while, which costs as much again.
type ticks struct {
	file *os.File // of fd
	fd   int
	conn syscall.RawConn
	read func(fd uintptr) bool
	at   [8]byte // the kernel writes how often the interval has passed
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
		// It does not wait, and so the scheduler need not hear of it.
		_, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&t.at)), unsafe.Sizeof(t.at))
		return errno != unix.EAGAIN
	}
	return t, nil
}

// set changes the interval; the first one begins now.
func (t *ticks) set(interval time.Duration) {
	every := unix.NsecToTimespec(int64(interval))
	// fails for negative times only
	_ = unix.TimerfdSettime(t.fd, 0, &unix.ItimerSpec{Interval: every, Value: every}, nil)
}

// next waits for the end of an interval; false: ctx has ended.
func (t *ticks) next(ctx context.Context) bool {
	return t.conn.Read(t.read) == nil && ctx.Err() == nil
}

// stopWith ends a next that waits when ctx ends.
func (t *ticks) stopWith(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, func() { _ = t.file.SetReadDeadline(time.Unix(1, 0)) })
}

func (t *ticks) close() { _ = t.file.Close() }
