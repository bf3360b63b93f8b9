//go:build !linux

package process

import (
	"errors"
	"syscall"
	"time"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func traceCalls(int) (Counting, error) {
	return nil, errors.New("process: system calls can be counted on Linux only")
}

// runTime returns false, because this system has no such clock.
func runTime(int) (time.Duration, bool) { return 0, false }
