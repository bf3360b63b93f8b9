//go:build !linux

package engine

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the engine lead a process group of its own. On this system the kernel does not
// kill the engine with the agent.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func dropRights() error { return nil }

// reap waits until cmd has exited, calls settle, kills the rest of its group and returns the result
// of cmd.Wait.
func reap(cmd *exec.Cmd, settle func()) error {
	err := cmd.Wait()
	settle()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	return err
}

// groupAlive cannot look at processes on this system. groupAlive counts a group as ended once its
// leader has exited.
func groupAlive(int) bool { return false }
