//go:build !linux

package engine

import (
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// attributes make the engine lead a group of its own. Here no kernel takes it
// along when the agent is killed.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func dropRights() error { return nil }

// reap waits until cmd has exited, calls settle, kills what is left of its
// group and returns what cmd.Wait does.
func reap(cmd *exec.Cmd, settle func()) error {
	err := cmd.Wait()
	settle()
	_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	return err
}

// groupAlive cannot tell here: once its leader has exited, the group is taken
// for done.
func groupAlive(int) bool { return false }
