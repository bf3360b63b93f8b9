package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/sim/engine"
)

// TestMain runs the test binary as the router if TEST_AS says so.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS") == "router" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = time.Minute // limit of a wait for an event

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// process is a running router process.
type process struct {
	*exec.Cmd
	t          *testing.T
	url, admin string
	config     string
	env        []string
	access     string
	out        *os.File // standard output; nil: the log file
	exited     chan error
	log        string // log file; a process started by this one writes to the file as well
}

func (p *process) logged() string {
	p.t.Helper()
	text, err := os.ReadFile(p.log)
	if err != nil {
		p.t.Error(err)
	}
	return string(text)
}

// configure writes the configuration with the given backends.
func (p *process) configure(backends ...*engine.Engine) {
	p.t.Helper()
	doc := fmt.Sprintf("[router]\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\ndrain_delay = "+
		"\"1ms\"\ndrain_timeout = \"1h\"\n[log]\naccess = %q\n", p.access)
	for i, e := range backends {
		doc += fmt.Sprintf("[[backend]]\nurl = %q\nid = \"e%d\"\n", e.URL(), i)
	}
	if err := os.WriteFile(p.config, []byte(doc), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

var serves = regexp.MustCompile(`msg="router serves" address=(\S+) admin=(\S+)`)

func startRouter(t *testing.T, backends ...*engine.Engine) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{t: t, config: filepath.Join(dir, "router.toml"), access: filepath.Join(dir, "access")}
	p.configure(backends...)
	p.launch()
	p.serves()
	eventually(t, "all nodes are eligible", func() bool { return p.eligible() == len(backends) })
	return p
}

// launch starts the process with its configuration.
func (p *process) launch(args ...string) {
	t := p.t
	t.Helper()
	p.exited = make(chan error, 1)
	p.Cmd = exec.Command(os.Args[0], append([]string{"--config", p.config}, args...)...)
	p.Env = append(os.Environ(), append(p.env, "TEST_AS=router")...)
	log, err := os.CreateTemp(filepath.Dir(p.config), "log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p.log, p.Stdout, p.Stderr = log.Name(), log, log
	if p.out != nil {
		p.Stdout = p.out
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.exited <- p.Wait()
	}()
	t.Cleanup(func() {
		_ = p.Process.Kill() // fails if the process has ended
		<-ended
		if t.Failed() {
			t.Log(p.logged())
		}
	})
}

// serves waits until the log gives the address.
func (p *process) serves() {
	p.t.Helper()
	eventually(p.t, "it serves", func() bool {
		at := serves.FindStringSubmatch(p.logged())
		if at != nil {
			p.url, p.admin = "http://"+at[1], "http://"+at[2]
		}
		return at != nil
	})
}

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

func (p *process) eligible() (n int) {
	resp, err := client.Get(p.admin + "/debug/fleet")
	if err != nil {
		return -1
	}
	defer resp.Body.Close()
	var view struct{ Nodes []struct{ Eligible bool } }
	if json.NewDecoder(resp.Body).Decode(&view) != nil {
		return -1
	}
	for _, node := range view.Nodes {
		if node.Eligible {
			n++
		}
	}
	return n
}

// stream begins a stream of the given tokens. stream returns once the first event has come.
func (p *process) stream(tokens int, fault string) (first string, rest *bufio.Reader) {
	p.t.Helper()
	body := fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}`,
		tokens)
	req, err := http.NewRequest(http.MethodPost, p.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	if fault != "" {
		req.Header.Set("x-sim-fault", fault)
	}
	resp, err := client.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { resp.Body.Close() })
	rest = bufio.NewReader(resp.Body)
	if first, err = rest.ReadString('\n'); err != nil || resp.StatusCode != 200 {
		p.t.Fatalf("%d %s %v", resp.StatusCode, first, err)
	}
	return first, rest
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) mustExit(what string) {
	p.t.Helper()
	select {
	case err := <-p.exited:
		if err != nil {
			p.t.Errorf("%s: %v", what, err)
		}
	case <-time.After(patience):
		p.t.Errorf("it does not end: %s", what)
	}
}

func simulate(t *testing.T) *engine.Engine {
	t.Helper()
	e, err := engine.New(engine.Config{DecodeStep: 2 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

// TestHangupReloads checks that SIGHUP reloads the backends and reopens the access log, and that
// SIGTERM drains.
func TestHangupReloads(t *testing.T) {
	a, b := simulate(t), simulate(t)
	p := startRouter(t, a)
	old := p.access + ".1"
	size := func(name string) int64 {
		info, err := os.Stat(name)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	_, whole := p.stream(2, "")
	if _, err := io.Copy(io.Discard, whole); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is in the access log", func() bool { return size(p.access) > 0 })
	if err := os.Rename(p.access, old); err != nil {
		t.Fatal(err)
	}
	p.configure(a, b)
	p.signal(syscall.SIGHUP)
	eventually(t, "the second backend is used", func() bool { return p.eligible() == 2 })
	eventually(t, "the reload is logged", func() bool {
		return strings.Contains(p.logged(), "msg=reloaded backends=2")
	})
	eventually(t, "the access log is opened anew", func() bool { _, err := os.Stat(p.access); return err == nil })
	_, rest := p.stream(200, "")
	p.signal(syscall.SIGTERM)
	page, err := io.ReadAll(rest)
	if err != nil || !strings.HasSuffix(string(page), "data: [DONE]\n\n") {
		t.Errorf("a running stream was cut: %v", err)
	}
	p.mustExit("drained")
	if size(p.access) == 0 {
		t.Error("nothing in the new access log")
	}
}

// TestHangupReopensTheAccessLog checks that SIGHUP reopens the access log with a faulty
// configuration too.
func TestHangupReopensTheAccessLog(t *testing.T) {
	p := startRouter(t, simulate(t))
	if err := os.WriteFile(p.config, []byte("[router\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(p.access, p.access+".1"); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGHUP)
	eventually(t, "it is opened anew", func() bool { _, err := os.Stat(p.access); return err == nil })
	eventually(t, "the mistake is logged", func() bool { return strings.Contains(p.logged(), "not reloaded") })
	p.signal(syscall.SIGTERM)
	p.mustExit("drained")
}

// TestSecondSignalForces checks that the first signal waits for running requests and the second
// does not.
func TestSecondSignalForces(t *testing.T) {
	p := startRouter(t, simulate(t))
	_, rest := p.stream(8, "stall_after=2")
	p.signal(syscall.SIGTERM)
	eventually(t, "it does not accept any more", func() bool {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	select {
	case err := <-p.exited:
		t.Fatalf("one signal has ended it with a request running: %v", err)
	default:
	}
	p.signal(syscall.SIGTERM)
	page, err := io.ReadAll(rest)
	if err != nil || !strings.Contains(string(page), "shutting_down") {
		t.Errorf("%v: %s", err, page)
	}
	p.mustExit("forced")
}

// TestHungLogDelaysNoSignal checks that an access log whose reader hangs keeps the router neither
// from SIGTERM after a SIGHUP nor from writing what clients have used.
func TestHungLogDelaysNoSignal(t *testing.T) {
	dir := t.TempDir()
	p := &process{t: t, config: filepath.Join(dir, "router.toml"), access: "-", out: fullPipe(t)}
	p.configure(simulate(t))
	used := filepath.Join(dir, "usage")
	if err := os.Mkdir(used, 0o700); err != nil {
		t.Fatal(err)
	}
	p.launch("--usage-dir", used)
	p.serves()
	eventually(t, "the node is eligible", func() bool { return p.eligible() == 1 })
	_, rest := p.stream(2, "")
	if _, err := io.Copy(io.Discard, rest); err != nil {
		t.Fatal(err)
	}
	eventually(t, "SIGHUP says that a log hangs", func() bool {
		p.signal(syscall.SIGHUP) // the line is written a second after the request
		return strings.Contains(p.logged(), "a write of the log hangs")
	})
	p.signal(syscall.SIGTERM)
	p.mustExit("drained")
	if files, _ := filepath.Glob(filepath.Join(used, "*.jsonl")); len(files) == 0 {
		t.Error("no usage is written")
	}
	if !regexp.MustCompile(`access log not written.* lines=1\n`).MatchString(p.logged()) {
		t.Error("the line is not counted as lost")
	}
}

// fullPipe returns the end for writing of a pipe that takes nothing more.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(ends[0]) })
	for _, part := range [][]byte{make([]byte, 4096), {0}} {
		for {
			if _, err := unix.Write(ends[1], part); err != nil {
				break
			}
		}
	}
	if err := unix.SetNonblock(ends[1], false); err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(ends[1]), "pipe")
	t.Cleanup(func() { f.Close() })
	return f
}
