package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/bpf"
)

// pinned mounts a BPF file system for the test.
func pinned(t *testing.T) (root string) {
	t.Helper()
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel: make check-bpf")
	}
	dir := t.TempDir()
	if err := syscall.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	root = filepath.Join(dir, "cognitora")
	t.Cleanup(func() {
		if _, err := bpf.Clean(root); err != nil {
			t.Error(err)
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return root
}

// ofNode matches the label of the node, alone or as the first label.
var ofNode = regexp.MustCompile(`^([a-z_]+)\{node="[^"]*"\}|(?:node="[^"]*",)`)

// watcher is an agent process attached to an engine of the test.
type watcher struct {
	*exec.Cmd
	front, admin string
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func watch(t *testing.T, engine, front, root string, args ...string) *watcher {
	t.Helper()
	w := &watcher{front: front, admin: freeAddress(t)}
	w.Cmd = exec.Command("/proc/self/exe", append([]string{"--engine", engine, "--listen", front, "--admin", w.admin,
		"--telemetry", "bpf", "--drain-timeout", "1s"}, args...)...)
	w.Env = append(os.Environ(), "TEST_AS=agent", "CGN_TELEMETRY_BPF_ROOT="+root, "CGN_AGENT_DRAIN_DELAY=1ms")
	w.Stderr = t.Output()
	w.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // the end of the thread would kill the process
	t.Cleanup(func() {
		_ = w.Process.Kill() // fails if the process has been waited for
		_ = w.Wait()
		runtime.UnlockOSThread()
	})
	if err := w.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the agent has looked at the kernel", func() bool {
		_, ok := w.metric(`cgn_agent_engine_cpu_ratio`)
		return ok
	})
	return w
}

func (w *watcher) end(t *testing.T, s os.Signal) {
	t.Helper()
	if err := w.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	_ = w.Wait() // returns an error, because it was killed
}

// metric returns a metric of the node by its name, with labels other than the node's.
func (w *watcher) metric(name string) (v float64, ok bool) {
	return metric(w.admin, name, func(line string) string { return ofNode.ReplaceAllString(line, "$1") })
}

// metric returns an admin port's metric by name and labels. how, unless nil, changes each line
// before it is compared.
func metric(admin, name string, how func(line string) string) (v float64, ok bool) {
	resp, err := client.Get("http://" + admin + "/metrics")
	if err != nil {
		return 0, false
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if how != nil {
			line = how(line)
		}
		if text, found := strings.CutPrefix(line, name+" "); found {
			v, err := strconv.ParseFloat(text, 64)
			return v, err == nil
		}
	}
	return 0, false
}

// streams returns how many streamed answers of the engine the kernel has counted. On a busy machine
// the kernel may not see whether a head came with a token.
func (w *watcher) streams() float64 {
	told, _ := w.metric("cgn_agent_kernel_ttft_seconds_count")
	unclear, _ := w.metric(`cgn_agent_kernel_unmeasured_total{why="unclear"}`)
	return told + unclear
}

// streams serves answers of five tokens.
func streams(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/v1/completions" {
			_, _ = io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for range 5 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":%q}]}\n\n", strings.Repeat("x", 100))
			w.(http.Flusher).Flush()
			time.Sleep(2 * time.Millisecond) // the engine computes
		}
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func (w *watcher) ask(t *testing.T, n int) {
	t.Helper()
	for range n {
		resp, err := client.Post("http://"+w.front+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"tiny","prompt":"x","stream":true}`))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, resp.Body)
		if err := errors.Join(err, resp.Body.Close()); err != nil || resp.StatusCode != 200 {
			t.Fatal(resp.StatusCode, err)
		}
	}
}

// TestCountsOutliveTheAgent checks that the kernel's counts survive an agent that is killed or
// leaves. The next agent gets these counts, together with the events between the two agents.
func TestCountsOutliveTheAgent(t *testing.T) {
	root, engine, front := pinned(t), streams(t), freeAddress(t)
	const opened = `cgn_agent_connections_opened_total{side="front"}`
	total := 0.0
	for i, signal := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGTERM} {
		w := watch(t, engine, front, root)
		if before := w.streams(); before != total {
			t.Errorf("agent %d finds %g answers, there were %g", i, before, total)
		}
		w.ask(t, 10)
		total += 10
		eventually(t, "all answers are counted", func() bool { return w.streams() == total })
		if n, ok := w.metric(opened); !ok || n < float64(10*(i+1)) {
			t.Errorf("agent %d: %g connections to the front, not %d", i, n, 10*(i+1))
		}
		for _, name := range []string{"cgn_agent_kernel_itl_seconds_count", "cgn_agent_run_delay_seconds_count",
			"cgn_agent_engine_cpu_seconds_total", `cgn_agent_segments_sent_total{side="front"}`,
			"cgn_agent_run_delay_p99_seconds"} {
			if n, ok := w.metric(name); !ok || n <= 0 {
				t.Errorf("agent %d: %s is %g, %t", i, name, n, ok)
			}
		}
		w.end(t, signal)
		if resp, err := client.Post(engine+"/v1/completions", "application/json",
			strings.NewReader(`{"model":"tiny","prompt":"without an agent","stream":true}`)); err != nil {
			t.Error(err)
		} else {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			total++
		}
	}
}

// TestProgramsRemovedUnderAnAgent checks that the agent loads the programs again. An agent that
// cannot load the programs continues with /proc. The agent must never report figures that no longer
// change.
func TestProgramsRemovedUnderAnAgent(t *testing.T) {
	root, engine, front := pinned(t), streams(t), freeAddress(t)
	w := watch(t, engine, front, root)
	clean := func() {
		t.Helper()
		if n, err := bpf.Clean(root); n == 0 || err != nil {
			t.Fatal(n, err)
		}
	}
	source := func(is string) bool {
		n, ok := w.metric(`cgn_agent_telemetry_source{source="` + is + `"}`)
		return ok && n == 1
	}
	w.ask(t, 10)
	eventually(t, "answers are counted", func() bool { return w.streams() == 10 })
	clean()
	eventually(t, "counts begin anew", func() bool { return w.streams() == 0 && source("bpf") })
	w.ask(t, 7)
	eventually(t, "answers are counted again", func() bool { return w.streams() == 7 })
	if used, ok := w.metric("cgn_agent_engine_cpu_seconds_total"); !ok || used <= 0 {
		t.Errorf("the engine has used %g s, %t", used, ok)
	}

	clean()
	dir := filepath.Dir(root)
	if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil { // no programs can be loaded
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Mount("bpf", dir, "bpf", 0, ""); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "the agent asks /proc", func() bool { return source("proc") })
	if _, ok := w.metric("cgn_agent_kernel_ttft_seconds_count"); ok {
		t.Error("/proc tells of tokens")
	}
	if n, ok := w.metric(`cgn_agent_telemetry_missing{what="time to first token and between tokens"}`); !ok || n != 1 {
		t.Errorf("what is missing is not said: %g, %t", n, ok)
	}
	eventually(t, "the engine's CPU time is known", func() bool {
		_, ok := w.metric("cgn_agent_engine_cpu_ratio")
		return ok
	})
	w.ask(t, 1)
}

// TestWithoutRights checks an agent that must load programs and lacks the right. The agent logs the
// missing right before it starts an engine, and when its configuration is checked.
func TestWithoutRights(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("it needs root, to run an agent as another user")
	}
	dir, err := os.MkdirTemp("", "cgn-rights")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file, ran := filepath.Join(dir, "agent.toml"), filepath.Join(dir, "ran")
	engine := filepath.Join(dir, "engine")
	text := fmt.Sprintf("[agent]\nlisten = %q\nadmin = %q\n[engine]\nkind = \"vllm\"\nmodel = \"m\"\nbinary = "+
		"%q\n[telemetry]\nkernel = \"bpf\"\n", freeAddress(t), freeAddress(t), engine)
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(file, []byte(text), 0o644),
		os.WriteFile(engine, []byte("#!/bin/sh\ntouch "+ran+"\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, more := range [][]string{{"--check-config"}, nil} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{"--config", file}, more...)...)
		cmd.Env = append(os.Environ(), "TEST_AS=agent")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
			t.Errorf("%v: %v", more, err)
		}
		for _, want := range []string{"telemetry.kernel", "CAP_BPF", "AmbientCapabilities", "setcap"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%v: no %s in %s", more, want, out)
			}
		}
		if strings.Contains(string(out), "agent runs") {
			t.Errorf("%v: it has started: %s", more, out)
		}
	}
	if _, err := os.Stat(ran); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the engine was started: %v", err)
	}
}
