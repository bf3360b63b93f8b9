package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/await"
)

// pipeWait bounds the wait for output while children of a dead engine still hold the pipe open.
const pipeWait = time.Second

// groupPoll is how often a group that is being stopped is checked.
const groupPoll = 20 * time.Millisecond

// run is one life of the engine's process.
type run struct {
	epoch   int64 // start, Unix nanoseconds
	pid     int
	restart context.CancelFunc // ends this life; the supervisor starts the next
}

// supervisor keeps one engine process alive until its context ends. The process leads its own
// group. The process dies with the agent, however the agent ends.
type supervisor struct {
	argv, env []string  // argv is owned by the goroutine of supervise
	fallback  *fallback // command that may take argv's place; nil: none
	grace     time.Duration
	backoff   backoff
	log       *slog.Logger
	event     chan struct{}      // signalled at each start and exit, without blocking
	count     prometheus.Counter // counts restarts; may be nil

	mu       sync.Mutex
	current  *run   // nil while no process runs
	reason   string // why no process runs
	restarts int64
}

// running returns the present life, or nil and why no process runs.
func (s *supervisor) running() (*run, string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.reason
}

func (s *supervisor) set(r *run, reason string) {
	s.mu.Lock()
	s.current, s.reason = r, reason
	s.mu.Unlock()
	await.Wake(s.event)
}

// supervise starts the process again and again until ctx ends. supervise returns once the last
// process and its whole group are gone.
func (s *supervisor) supervise(ctx, force context.Context) {
	// The kernel kills the engine when the thread that started it ends. So the goroutine stays on
	// one thread, and the thread ends with it.
	runtime.LockOSThread()
	if err := dropRights(); err != nil {
		s.log.Error("engine not started: the agent's rights cannot be kept from it", "error", err)
		s.set(nil, "engine not started: "+err.Error())
		return
	}
	if s.fallback != nil {
		s.argv = s.fallback.choose(ctx, s.argv, s.env, s.log)
	}
	for ctx.Err() == nil {
		started := time.Now()
		err := s.once(ctx, force)
		if ctx.Err() != nil {
			break
		}
		ran := time.Since(started)
		wait := s.backoff.after(ran)
		s.log.Error("engine exited, restarting it", "error", err, "ran", ran, "wait", wait)
		s.exited(err)
		if !await.For(ctx, wait) {
			return
		}
	}
	s.set(nil, "engine stopped")
}

func (s *supervisor) exited(err error) {
	s.mu.Lock()
	s.restarts++
	s.mu.Unlock()
	inc(s.count)
	s.set(nil, fmt.Sprintf("engine exited: %v", err))
}

// restarted returns how often the process was started again.
func (s *supervisor) restarted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.restarts
}

// once runs the process until it exits. The end of ctx or run.restart stops the process.
func (s *supervisor) once(ctx, force context.Context) error {
	cmd := exec.Command(s.argv[0], s.argv[1:]...)
	cmd.Env = s.env
	cmd.SysProcAttr = attributes()
	cmd.WaitDelay = pipeWait
	stdout := &lineLog{log: s.log.With("stream", "stdout")}
	stderr := &lineLog{log: s.log.With("stream", "stderr")}
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	pid := cmd.Process.Pid
	s.log.Info("engine started", "pid", pid, "program", s.argv[0])
	s.set(&run{epoch: time.Now().UnixNano(), pid: pid, restart: cancel}, "")

	exited := make(chan struct{})
	var stopper sync.WaitGroup
	stopper.Go(func() { s.stopWhenDone(ctx, force, pid, exited) })
	err := reap(cmd, func() {
		close(exited)
		stopper.Wait()
	})
	stdout.flush()
	stderr.flush()
	if errors.Is(err, exec.ErrWaitDelay) || err == nil {
		err = errors.New(cmd.ProcessState.String())
	}
	return err
}

// stopWhenDone stops the group when ctx ends: with SIGTERM, then with SIGKILL after the grace
// period or when force ends. stopWhenDone does nothing if the process has exited before.
func (s *supervisor) stopWhenDone(ctx, force context.Context, pid int, exited <-chan struct{}) {
	select {
	case <-exited:
		return
	case <-ctx.Done():
	}
	s.log.Info("stopping the engine", "pid", pid, "grace", s.grace)
	_ = unix.Kill(-pid, unix.SIGTERM)
	limit, cancel := context.WithTimeout(force, s.grace)
	defer cancel()
	if !awaitGroup(limit, pid, exited) {
		s.log.Warn("engine still runs after SIGTERM, killing it", "pid", pid)
		_ = unix.Kill(-pid, unix.SIGKILL)
	}
	<-exited
}

// awaitGroup waits for the leader to exit and then for the rest of its group. Behind a shell script
// or a launcher, the rest is the engine itself. awaitGroup returns false if ctx ends first.
func awaitGroup(ctx context.Context, pid int, exited <-chan struct{}) bool {
	select {
	case <-exited:
	case <-ctx.Done():
		return false
	}
	tick := time.NewTicker(groupPoll)
	defer tick.Stop()
	for groupAlive(pid) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
