package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the test binary as the agent, or as an engine, if CGN_TEST_AS says so.
func TestMain(m *testing.M) {
	switch os.Getenv("TEST_AS") {
	case "agent":
		main()
		os.Exit(0)
	case "engine":
		engine(os.Args[1], os.Args[2])
	}
	os.Exit(m.Run())
}

// engine serves until it is killed, for at most an hour. A completion never ends before its client
// leaves.
func engine(port, pidFile string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"tiny"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("GET /burn", func(_ http.ResponseWriter, r *http.Request) { // one CPU, while its client stays
		for r.Context().Err() == nil {
		}
	})
	time.AfterFunc(time.Hour, func() { os.Exit(1) })
	if err := os.WriteFile(pidFile, []byte(strconv.Itoa(os.Getpid())), 0o600); err != nil {
		panic(err)
	}
	panic(http.ListenAndServe("127.0.0.1:"+port, mux))
}

const patience = time.Minute // limit of a wait for an event

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

// process is an agent that has started an engine of its own.
type process struct {
	*exec.Cmd
	front, pidFile string
	log            bytes.Buffer // complete once exited is closed
	exited         chan struct{}
}

func startProcess(t *testing.T) *process {
	t.Helper()
	dir := t.TempDir()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front, pidFile := ln.Addr().String(), filepath.Join(dir, "pid")
	ln.Close()
	p := launch(t, fmt.Sprintf(`[agent]
listen = %q
admin = "127.0.0.1:0"
drain_delay = "1ms"
drain_timeout = "1h"
[engine]
kind = "openai_compat"
binary = %q
args = ["{port}", %q]
env = ["TEST_AS=engine"]
[telemetry]
kernel = "proc"
`, front, os.Args[0], pidFile))
	p.front, p.pidFile = front, pidFile
	eventually(t, "ready", func() bool { return healthy(front) })
	return p
}

// healthy says whether the front of a node answers that the node takes requests.
func healthy(front string) bool {
	resp, err := client.Get("http://" + front + "/health")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == 200
}

// launch starts an agent as a process of its own.
func launch(t *testing.T, doc string) *process {
	t.Helper()
	p := &process{exited: make(chan struct{})}
	file := filepath.Join(t.TempDir(), "agent.toml")
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	p.Cmd = exec.Command(os.Args[0], "--config", file)
	p.Env = append(os.Environ(), "TEST_AS=agent")
	p.Stdout, p.Stderr = &p.log, &p.log
	p.WaitDelay = time.Second
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill()
		<-p.exited
		if t.Failed() {
			t.Log(p.log.String())
		}
	})
	return p
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func (p *process) enginePID(t *testing.T) int {
	t.Helper()
	return pidIn(t, p.pidFile)
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// gone says whether pid is no process, or an unreaped dead one.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ")
}

func (p *process) waitExit(t *testing.T) {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatal("the agent did not exit")
	}
}

func TestSIGTERMStopsAgentAndEngine(t *testing.T) {
	p := startProcess(t)
	pid := p.enginePID(t)
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitExit(t)
	if code := p.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	if !gone(pid) {
		t.Error("the engine outlived its agent")
	}
	for _, step := range []string{"let routers know", "finish requests", "leave the fleet", "close the front",
		"stop the engine"} {
		if !strings.Contains(p.log.String(), `msg="drain step done" step="`+step) &&
			!strings.Contains(p.log.String(), `step="`+step) {
			t.Errorf("the log does not time %q", step)
		}
	}
}

func TestSecondSignalForces(t *testing.T) {
	p := startProcess(t)
	resp, err := client.Post("http://"+p.front+"/v1/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	for i, still := range []bool{true, false} {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			eventually(t, "draining", func() bool {
				resp, err := client.Get("http://" + p.front + "/health")
				if err != nil {
					return false
				}
				resp.Body.Close()
				return resp.StatusCode == 503
			})
		}
		select {
		case <-p.exited:
			if still {
				t.Fatal("the first signal cut the running request")
			}
		default:
		}
	}
	p.waitExit(t)
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the cut stream looks complete: %q", body)
	}
}

func TestKilledAgentLeavesNoEngine(t *testing.T) {
	p := startProcess(t)
	pid := p.enginePID(t)
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.waitExit(t)
	eventually(t, "the engine is gone too", func() bool { return gone(pid) })
}

// TestAnEnvironmentSharedWithARouter checks that settings of the router alone are neither refused
// nor reported.
func TestAnEnvironmentSharedWithARouter(t *testing.T) {
	page, err := os.ReadFile("../../deploy/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"CGN_ADMIN=127.0.0.1:9091", "CGN_SOMETHING=1"}
	for _, name := range regexp.MustCompile(
		`CGN_(ROUTER|PREFIX|ADMISSION|TIMEOUTS|RETRY|UPSTREAM_TLS)_[A-Z_]+`).FindAllString(string(page), -1) {
		env = append(env, name+"=1")
	}
	if len(env) < 20 {
		t.Fatalf("the reference has %v only", env)
	}
	var out bytes.Buffer
	if err := run([]string{"--engine", "http://127.0.0.1:8000", "--check-config"}, env, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "is in the environment and is no setting"); n != 1 {
		t.Errorf("%d are reported, not CGN_SOMETHING alone:\n%s", n, out.String())
	}
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		name, args, out, err string
	}{
		{"version", "--version", "cgn-agent ", ""},
		{"help", "--help", "--engine", ""},
		{"check", "--check-config --engine http://127.0.0.1:8000", "url = \"http://127.0.0.1:8000\"", ""},
		{"nothing to do", "--check-config", "", "engine.model: empty; give the model to load, or engine.url"},
		{"unknown flag", "--engin=x", "", "--engine?"},
		{"flags as the router spells them", "--check-config --engine http://127.0.0.1:8000 --tls.cert c", "", "tls.cert: goes together with tls.key"},
		{"exposed", "--check-config --engine http://127.0.0.1:8000 --listen :9081", "", "cgn-ctl pki bootstrap"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(strings.Fields(c.args), nil, &out, io.Discard)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if !strings.Contains(out.String(), c.out) {
				t.Errorf("output:\n%s", out.String())
			}
		})
	}
}
