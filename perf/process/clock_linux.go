package process

import (
	"time"

	"golang.org/x/sys/unix"
)

// schedClock is the kernel's CPUCLOCK_SCHED: the run time of all threads, including ended ones, in
// ns.
const schedClock = 2

// runTime reads the CPU clock of a process. runTime returns false if the process has ended.
func runTime(pid int) (time.Duration, bool) {
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &t); err != nil {
		return 0, false
	}
	return time.Duration(t.Nano()), true
}
