package engine

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the engine lead a group of its own and have the kernel kill
// it when the thread that started it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// dropRights keeps the agent's own capabilities from programs that this thread starts: ambient ones
// would go along.
func dropRights() error {
	// a kernel without has none
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil &&
		err != unix.EINVAL {
		return os.NewSyscallError("prctl", err)
	}
	return nil
}

// reap waits until cmd has exited, calls settle, kills what is left of its
// group and returns what cmd.Wait does. The process is not reaped before the
// group is dead, so that its id cannot name another group.
func reap(cmd *exec.Cmd, settle func()) error {
	pid := cmd.Process.Pid
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
			break
		}
	}
	settle()
	_ = unix.Kill(-pid, unix.SIGKILL)
	return cmd.Wait()
}

// groupAlive tells whether a process of the group, other than a zombie, runs.
func groupAlive(pgid int) bool {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	want := []byte(strconv.Itoa(pgid))
	for _, file := range stats {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // ended meanwhile
		}
		// pid (name) state ppid pgrp …; the name may hold anything
		fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
		if len(fields) > 2 && bytes.Equal(fields[2], want) && fields[0][0] != 'Z' && fields[0][0] != 'X' {
			return true
		}
	}
	return false
}
