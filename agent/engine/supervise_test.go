package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

const patience = time.Minute // a test fails when an event takes longer

// eventually polls until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(patience), time.Tick(5*time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// start runs an engine of c until stop is called or the test ends.
func start(t *testing.T, c *Config) (e *Engine, log *logBuffer, stop func()) {
	t.Helper()
	log = &logBuffer{}
	e, err := New(c, Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, t.Context())
	}()
	stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	return e, log, stop
}

func pidOf(t *testing.T, e *Engine) int {
	t.Helper()
	run, reason := e.sup.running()
	if run == nil {
		t.Fatal(reason)
	}
	return run.pid
}

func gone(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }

func TestStartedEngineBecomesReadyAndStops(t *testing.T) {
	e, _, stop := start(t, fakeConfig("ok"))
	eventually(t, "ready", func() bool { return e.State().Ready })
	s := e.State()
	if got := strings.Join(s.Models, " "); got != "adapter tiny" {
		t.Errorf("models %q", got)
	}
	if s.Epoch == 0 || s.Restarts != 0 {
		t.Errorf("epoch %d, restarts %d", s.Epoch, s.Restarts)
	}
	pid := pidOf(t, e)
	stop()
	if !gone(pid) {
		t.Error("the engine outlived Run")
	}
	if s := e.State(); s.Ready {
		t.Error("still ready after Run")
	}
}

func TestExitedEngineIsRestarted(t *testing.T) {
	e, log, _ := start(t, fakeConfig("ok"))
	eventually(t, "ready", func() bool { return e.State().Ready })
	first := e.State().Epoch
	resp, err := http.Get("http://" + e.Endpoint().Addr + "/exit")
	if err == nil {
		resp.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
	eventually(t, "ready in a new life", func() bool { s := e.State(); return s.Ready && s.Epoch != first })
	if s := e.State(); s.Restarts != 1 {
		t.Errorf("restarts %d", s.Restarts)
	}
	if !strings.Contains(log.String(), "exit status 4") {
		t.Error("the log does not say how it ended")
	}
}

func TestCrashingEngineIsNotReadyAndBacksOff(t *testing.T) {
	e, log, stop := start(t, fakeConfig("crash"))
	eventually(t, "three restarts", func() bool { return e.State().Restarts >= 3 })
	s := e.State()
	if s.Ready || !strings.Contains(s.Reason, "exit status 3") {
		t.Errorf("ready %v, reason %q", s.Ready, s.Reason)
	}
	stop()
	for _, want := range []string{"wait=10ms", "wait=20ms", "wait=40ms", `line="no such model"`, "stream=stdout"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("log lacks %s", want)
		}
	}
}

func TestStubbornEngineIsKilled(t *testing.T) {
	c := fakeConfig("stubborn")
	c.StopGrace = config.Duration(50 * time.Millisecond)
	e, log, stop := start(t, c)
	eventually(t, "ready", func() bool { return e.State().Ready })
	pid := pidOf(t, e)
	stop()
	if !gone(pid) || !strings.Contains(log.String(), "still runs after SIGTERM") {
		t.Errorf("gone %v, log:\n%s", gone(pid), log)
	}
}

func TestForceSkipsTheGrace(t *testing.T) {
	c := fakeConfig("stubborn")
	c.StopGrace = config.Duration(time.Hour)
	e, err := New(c, Options{Logger: testLog(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	force, kill := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.Run(ctx, force)
	}()
	eventually(t, "ready", func() bool { return e.State().Ready })
	stop()
	kill()
	<-done
}

func TestChildrenOfTheEngineGoWithIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "child")
	c := fakeConfig("family", "FAKE_CHILD="+file)
	c.StopGrace = config.Duration(50 * time.Millisecond) // the child of the engine ignores SIGTERM
	e, _, stop := start(t, c)
	var child int
	eventually(t, "child started", func() bool {
		b, _ := os.ReadFile(file)
		child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return child != 0 && e.State().Ready
	})
	stop()
	// Perhaps nobody has reaped the child yet; a zombie has no memory either.
	eventually(t, "child gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

func TestEngineBehindALauncherGetsItsGrace(t *testing.T) {
	dir := t.TempDir()
	// The launcher ends at SIGTERM immediately. The launched engine takes a while to end.
	script := filepath.Join(dir, "launch")
	engine := `trap 'sleep 0.2; echo clean > "$OUT"; exit 0' TERM; echo up > "$OUT"; while :; do sleep 0.01; done`
	doc := "#!/bin/sh\nOUT=" + filepath.Join(dir, "out") + "\nexport OUT\n/bin/sh -c '" + strings.ReplaceAll(engine,
		"'", `'\''`) + "' &\nwait\n"
	if err := os.WriteFile(script, []byte(doc), 0o700); err != nil {
		t.Fatal(err)
	}
	c := fakeConfig("")
	c.Binary, c.Args, c.Env = script, nil, nil
	_, _, stop := start(t, c)
	content := func() string { b, _ := os.ReadFile(filepath.Join(dir, "out")); return strings.TrimSpace(string(b)) }
	eventually(t, "up", func() bool { return content() == "up" })
	stop()
	if got := content(); got != "clean" {
		t.Errorf("the engine was killed while it cleaned up: %q", got)
	}
}

func TestEngineThatNeverLoadsIsRestarted(t *testing.T) {
	c := fakeConfig("ok", "FAKE_LOADED=/nonexistent/file")
	c.StartTimeout = config.Duration(200 * time.Millisecond)
	e, log, _ := start(t, c)
	eventually(t, "a restart", func() bool { return e.State().Restarts >= 1 })
	if !strings.Contains(log.String(), "not been ready for too long") {
		t.Error("the log does not say why")
	}
}

func TestEngineThatTurnsUnhealthyIsRestarted(t *testing.T) {
	loaded := filepath.Join(t.TempDir(), "loaded")
	if err := os.WriteFile(loaded, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := fakeConfig("ok", "FAKE_LOADED="+loaded)
	c.UnhealthyTimeout = config.Duration(50 * time.Millisecond)
	e, _, _ := start(t, c)
	eventually(t, "ready", func() bool { return e.State().Ready })
	if err := os.Remove(loaded); err != nil {
		t.Fatal(err)
	}
	eventually(t, "not ready", func() bool { return !e.State().Ready })
	eventually(t, "a restart", func() bool { return e.State().Restarts >= 1 })
}

func TestMissingBinaryIsAnErrorAtOnce(t *testing.T) {
	_, err := New(&Config{Kind: VLLM, Model: "m", Binary: "no-such-engine"}, Options{})
	if err == nil || !strings.Contains(err.Error(), "engine.binary") {
		t.Errorf("got %v", err)
	}
}

func TestBackoff(t *testing.T) {
	b := backoff{first: time.Second, most: 5 * time.Second, stable: time.Minute}
	for i, want := range []time.Duration{1, 2, 4, 5, 5} {
		if got := b.after(time.Second); got != want*time.Second {
			t.Errorf("wait %d is %v, want %vs", i, got, int(want))
		}
	}
	if got := b.after(time.Minute); got != time.Second {
		t.Errorf("after a stable run: %v", got)
	}
}

func TestLineLogBoundsLines(t *testing.T) {
	var out logBuffer
	l := &lineLog{log: slog.New(slog.NewTextHandler(&out, nil))}
	for _, piece := range []string{"one\r\ntw", "o\n\n", strings.Repeat("x", maxLine-1), "yzz", "z\nlast"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	l.flush()
	l.flush()
	got := out.String()
	if strings.Count(got, "\n") != 4 || !strings.Contains(got, "line=one\n") || !strings.Contains(got, "line=two\n") ||
		!strings.Contains(got, "line=last\n") {
		t.Errorf("log:\n%.300s", got)
	}
	if !strings.Contains(got, "xy cut_at_bytes=4096") || strings.Contains(got, "z") {
		t.Error("the long line was not cut at its bound")
	}
}
