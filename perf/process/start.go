package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Process is a program that Start started.
type Process struct {
	Name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when the program has ended
}

// Start runs argv in a process group of its own. The program's output goes to NAME.log in dir. env
// is added to this process's environment. The program is killed if this process dies.
func Start(dir, name string, argv, env []string) (*Process, error) {
	out, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &Process{Name: name, cmd: exec.Command(argv[0], argv[1:]...), log: out.Name(), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = dir, out, out
	p.cmd.SysProcAttr = attributes()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // Explain reports how it ended
		close(p.done)
	}()
	return p, nil
}

// PID returns the id of the program itself.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Usage returns the usage of the program and its descendants.
func (p *Process) Usage() (Usage, error) {
	u, err := Read(p.PID())
	if errors.Is(err, errEnded) {
		<-p.done // Wait has returned
	}
	if err != nil {
		return u, p.Explain(err)
	}
	return u, nil
}

// Explain adds to err how the program ended, if it has, and the end of its log.
func (p *Process) Explain(err error) error {
	const most = 2 << 10
	text, _ := os.ReadFile(p.log)
	select {
	case <-p.done:
		err = fmt.Errorf("%w (%s)", err, p.cmd.ProcessState) // such as "signal: killed" or "exit status 1"
	default:
	}
	if len(text) == 0 {
		return fmt.Errorf("%s: %w; its log is empty", p.Name, err)
	}
	return fmt.Errorf("%s: %w; the end of its log:\n%s", p.Name, err, text[max(0, len(text)-most):])
}

// WaitHealthy waits until the path answers 200. With an empty path, WaitHealthy waits until addr
// accepts connections.
func (p *Process) WaitHealthy(ctx context.Context, addr, path string) error {
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		if healthy(&client, addr, path) {
			return nil
		}
		select {
		case <-ctx.Done():
			return p.Explain(errors.New("not healthy in time"))
		case <-p.done:
			return p.Explain(errors.New("ended before it was healthy"))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func healthy(client *http.Client, addr, path string) bool {
	if path == "" {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}
	resp, err := client.Get("http://" + addr + path)
	if err != nil {
		return false
	}
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// stopGrace is the time that a program has after SIGTERM.
const stopGrace = 5 * time.Second

// Stop ends the program and its process group, and waits.
func (p *Process) Stop() {
	_ = syscall.Kill(-p.PID(), syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(stopGrace):
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	<-p.done
}

// wantFiles is enough for 10,000 streams, each with connections on both sides of client, router and
// engine.
const wantFiles = 1 << 17

// RaiseFiles raises the limit of open files for this process and its children, beyond the hard
// limit if that is allowed. RaiseFiles returns the limit.
func RaiseFiles() (uint64, error) {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return 0, err
	}
	if l.Max < wantFiles && syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: wantFiles, Max: wantFiles}) ==
		nil {
		return wantFiles, nil
	}
	l.Cur = min(l.Max, wantFiles)
	return l.Cur, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}
