package engine

import (
	"os"
	"os/exec"
	"slices"
	"syscall"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// attributes make the engine lead a process group of its own. The kernel kills the engine when the
// thread that started it ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// dropRights clears this thread's ambient capabilities, because programs that it starts would
// inherit them.
func dropRights() error {
	// a kernel without ambient capabilities has nothing to clear
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil &&
		err != unix.EINVAL {
		return os.NewSyscallError("prctl", err)
	}
	return nil
}

// reap waits until cmd has exited, calls settle, kills the rest of its group and returns the result
// of cmd.Wait. reap reaps the process last, so that no other group can get its id before.
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

// groupAlive tells whether the group has a running process that is no zombie.
func groupAlive(pgid int) bool {
	all, _ := procfs.AllProcs()
	return slices.ContainsFunc(all, func(p procfs.Proc) bool {
		s, err := p.Stat() // fails if the process has ended meanwhile
		return err == nil && s.PGRP == pgid && s.State != "Z" && s.State != "X"
	})
}
