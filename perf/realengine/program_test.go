package realengine

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

const (
	engineReady = 10 * time.Minute // for vLLM on a busy machine; llama.cpp takes a second
	soon        = 30 * time.Second
)

// setup holds the programs and folders that a run.sh has prepared.
type setup struct {
	run   string // folder for logs and process ids, which the script reads
	bin   string // folder with the built binaries
	serve string // program that serves a model: llama-server or vllm-serve
	model string
}

func prepared(t *testing.T, engine string) setup {
	t.Helper()
	if os.Getenv("REALENGINE") != engine {
		t.Skipf("needs a real engine; perf/realengine/run.sh %s brings it and runs this", engine)
	}
	return setup{os.Getenv("REALENGINE_RUN"), os.Getenv("REALENGINE_BIN"), os.Getenv("REALENGINE_SERVE"),
		os.Getenv("REALENGINE_MODEL")}
}

// program is a process that a test has started. The program's output is in run/NAME.log.
type program struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended
}

// launch starts a program that ends with the test at the latest. The program leads a process group,
// because vLLM's helpers outlive it when it is killed. The program's process id stays in run/pids
// until it has ended, so that the script can end processes of a killed test.
func (s setup) launch(t *testing.T, name string, env []string, argv ...string) *program {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.run, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = log, log, append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := filepath.Join(s.run, "pids", strconv.Itoa(cmd.Process.Pid))
	if err := os.WriteFile(pid, nil, 0o600); err != nil {
		t.Error(err)
	}
	p := &program{name, cmd, make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait()                                      // ProcessState has the result
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually the group is empty
		_ = os.Remove(pid)
	}()
	t.Cleanup(func() { p.stop(t) })
	return p
}

// stop asks the program to end, and kills it if it does not.
func (p *program) stop(t *testing.T) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended
	select {
	case <-p.done:
	case <-time.After(soon):
		t.Errorf("%s does not end on SIGTERM", p.name)
		p.kill()
	}
}

func (p *program) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *program) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// engine is a real server, which may be started more than once.
type engine struct {
	*program
	setup
	id, address string
	flags       []string
	env         []string
	options     string // options after the id in the router's --backend
	tokenizer   string // directory for the router's [[model]]
	template    string // chat template of the model
	settings    string // further settings of the router's [[model]]
}

// engine starts a server. name distinguishes its log. The function engine returns before the server
// is ready.
func (s setup) engine(t *testing.T, id string, flags ...string) *engine {
	t.Helper()
	e := &engine{setup: s, id: id, address: free(t), flags: flags}
	e.start(t)
	return e
}

func (e *engine) start(t *testing.T) {
	t.Helper()
	_, port, _ := net.SplitHostPort(e.address)
	argv := append([]string{e.serve}, e.flags...)
	e.program = e.launch(t, e.id, e.env, append(argv, "--host", "127.0.0.1", "--port", port)...)
}

func (e *engine) url() string { return "http://" + e.address }

func (e *engine) awaitReady(t *testing.T) {
	t.Helper()
	within(t, engineReady, e.id+" serves", func() bool {
		if e.ended() {
			t.Fatalf("%s ended: %v", e.id, e.cmd.ProcessState)
		}
		return healthy(e.url() + "/health")
	})
}

func healthy(url string) bool {
	resp, err := http.Get(url)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// free returns a loopback address without a listener. The address's port is not used by outgoing
// connections.
func free(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10_000+rand.IntN(20_000)))
		if err != nil {
			continue
		}
		defer l.Close()
		return l.Addr().String()
	}
	t.Fatal("no free port from 10000 to 29999")
	return ""
}

// within polls until ok returns true, and returns the time that took.
func within(t *testing.T, bound time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(began)
}
