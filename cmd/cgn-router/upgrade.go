package main

import (
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// upgrader starts a successor on SIGUSR2. The successor is the program now at the path of this one.
// The successor takes over from this process. The successor is a child process with the same
// sandbox, user, environment and log descriptors.
type upgrader struct {
	program string // absolute; links in the path are resolved at each start
	args    []string
	log     *slog.Logger
	child   *os.Process // nil: no child, or its end was noticed
}

// listenForUpgrades handles SIGUSR2 until close is called. close waits for a running start and
// leaves a child running.
func listenForUpgrades(args []string, log *slog.Logger) (close func()) {
	u := &upgrader{log: log}
	for _, a := range args {
		if a != "--takeover" && !strings.HasPrefix(a, "--takeover=") {
			u.args = append(u.args, a)
		}
	}
	u.args = append(u.args, "--takeover")
	program, err := exec.LookPath(os.Args[0])
	if err == nil {
		u.program, err = filepath.Abs(program)
	}
	if err != nil {
		log.Warn("SIGUSR2 will start nothing: this program's file is not found", "error", err)
	}
	signals, done := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR2, syscall.SIGCHLD)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				u.reap()
				if s == syscall.SIGUSR2 {
					u.start()
				}
			}
		}
	})
	return sync.OnceFunc(func() {
		signal.Stop(signals)
		done <- struct{}{}
		wg.Wait()
	})
}

func (u *upgrader) start() {
	if u.child != nil {
		u.log.Warn("no router started to take over: one is running", "process", u.child.Pid)
		return
	}
	child, err := os.StartProcess(u.program, append([]string{u.program}, u.args...),
		&os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		u.log.Error("no router started to take over", "error", err)
		return
	}
	u.child = child
	u.log.Info("a router was started to take over", "process", child.Pid, "program", u.program)
}

// reap waits for the end of the child.
func (u *upgrader) reap() {
	if u.child == nil {
		return
	}
	var status syscall.WaitStatus
	pid, err := syscall.Wait4(u.child.Pid, &status, syscall.WNOHANG, nil)
	if err == nil && pid == 0 {
		return
	}
	u.log.Warn("the router that was started to take over has ended", "process", u.child.Pid, "status",
		status.ExitStatus(), "error", err)
	_ = u.child.Release() // frees memory only
	u.child = nil
}
