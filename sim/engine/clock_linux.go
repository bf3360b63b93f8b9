package engine

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time of this thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts) // cannot fail
	return time.Duration(ts.Nano())
}
