package events

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// used returns the CPU time of this process so far.
func used(t testing.TB) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
