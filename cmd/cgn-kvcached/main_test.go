package main

import (
	"bufio"
	"bytes"
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
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestMain runs the test binary as the daemon if TEST_AS says so.
func TestMain(m *testing.M) {
	if os.Getenv("TEST_AS") == "kvcached" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const patience = time.Minute // limit of a wait for an event

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// output collects the output of a process.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a running daemon.
type process struct {
	*exec.Cmd
	log    output
	admin  string
	resp   string
	exited chan struct{}
}

var (
	adminAt = regexp.MustCompile(`msg="cache daemon runs" .*admin=(\S+)`)
	respAt  = regexp.MustCompile(`msg=serving part=resp at=(\S+)`)
)

func startProcess(t *testing.T, dir string, more ...string) *process {
	t.Helper()
	p := &process{exited: make(chan struct{})}
	p.Cmd = exec.Command(os.Args[0], append([]string{
		"--data", dir, "--ram", "32MiB", "--ssd", "128MiB", "--sock", filepath.Join(dir, "kv.sock"), "--resp",
		"127.0.0.1:0", "--admin", "127.0.0.1:0",
	}, more...)...)
	p.Env = append(os.Environ(), "TEST_AS=kvcached")
	p.Stdout, p.Stderr = &p.log, &p.log
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
	p.eventually(t, "ready", func() bool {
		admin, resp := adminAt.FindStringSubmatch(p.log.String()), respAt.FindStringSubmatch(p.log.String())
		if admin == nil || resp == nil {
			return false
		}
		p.admin, p.resp = admin[1], resp[1]
		r, err := client.Get("http://" + p.admin + "/readyz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == 200
	})
	return p
}

func (p *process) eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(patience), time.Tick(5*time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-p.exited:
			t.Fatalf("exited before: %s\n%s", what, p.log.String())
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// redis sends one command and returns its reply. For a bulk string redis returns the value.
func (p *process) redis(t *testing.T, words ...string) string {
	t.Helper()
	conn, err := net.Dial("tcp", p.resp)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(w), w)
	}
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	line = strings.TrimSpace(line)
	if n := 0; strings.HasPrefix(line, "$") && line != "$-1" {
		fmt.Sscanf(line, "$%d", &n)
		value := make([]byte, n)
		if _, err := io.ReadFull(in, value); err != nil {
			t.Fatal(err)
		}
		return string(value)
	}
	return line
}

func TestSIGTERMDrainsAndSecondStartWorks(t *testing.T) {
	dir := t.TempDir()
	p := startProcess(t, dir)
	if got := p.redis(t, "SET", "a", "hello") + p.redis(t, "GET", "a"); got != "+OKhello" {
		t.Errorf("%q", got)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(patience):
		t.Fatal("it did not exit")
	}
	if code := p.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for _, step := range []string{"leave the fleet", "finish lease", "finish resp", "close the stores"} {
		if !strings.Contains(p.log.String(), `step="`+step) {
			t.Errorf("the log does not time %q", step)
		}
	}
	startProcess(t, dir)
}

// TestKilledDaemonStartsAgain checks that the remains of a killed daemon, such as sockets and the
// lock, do not hinder the next one.
func TestKilledDaemonStartsAgain(t *testing.T) {
	dir := t.TempDir()
	for round := range 3 {
		p := startProcess(t, dir)
		if got := p.redis(t, "SET", "a", "hello"); got != "+OK" {
			t.Errorf("round %d: %q", round, got)
		}
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.exited
	}
}

// metric reads one value from /metrics.
func (p *process) metric(t *testing.T, name string) (value float64) {
	t.Helper()
	r, err := client.Get("http://" + p.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	page, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			fmt.Sscan(rest, &value)
		}
	}
	return value
}

// TestKilledDaemonComesBackWarm checks that blocks used twice are on SSD and survive kill -9.
func TestKilledDaemonComesBackWarm(t *testing.T) {
	dir := t.TempDir()
	value := strings.Repeat("0123456789abcdef", 100_000)
	p := startProcess(t, dir)
	for i := range 3 {
		if got := p.redis(t, "SET", fmt.Sprint("key-", i), fmt.Sprint(i)+value); got != "+OK" {
			t.Fatal(got)
		}
	}
	p.eventually(t, "three blocks are on SSD", func() bool {
		for i := range 3 {
			if got := p.redis(t, "GET", fmt.Sprint("key-", i)); got != fmt.Sprint(i)+value {
				t.Fatalf("%d bytes came back", len(got))
			}
		}
		return p.metric(t, "cgn_kvcached_ssd_admitted_total") >= 3
	})
	for round := range 2 {
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		<-p.exited
		p = startProcess(t, dir)
		for i := range 3 {
			if got := p.redis(t, "GET", fmt.Sprint("key-", i)); got != fmt.Sprint(i)+value {
				t.Errorf("round %d: key %d: %.20q, %d bytes", round, i, got, len(got))
			}
		}
		if n := p.metric(t, "cgn_kvcached_promotions_total"); n != 3 {
			t.Errorf("round %d: %v promotions", round, n)
		}
		if got := p.redis(t, "GET", "key-9"); got != "$-1" {
			t.Errorf("a key that never was: %q", got)
		}
	}
	p.eventually(t, "the log says that the index is loaded", func() bool {
		return strings.Contains(p.log.String(), "index loaded")
	})
}

func TestSIGHUPSaysWhatItDoes(t *testing.T) {
	p := startProcess(t, t.TempDir())
	if err := p.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.eventually(t, "the log tells", func() bool {
		return strings.Contains(p.log.String(), "SIGHUP only reopens the audit log")
	})
	if got := p.redis(t, "PING"); got != "+PONG" {
		t.Error(got)
	}
}

func TestReadyzSaysWhatIsServed(t *testing.T) {
	p := startProcess(t, t.TempDir())
	r, err := client.Get("http://" + p.admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	var body struct {
		Ready  bool
		Serves []struct{ Name, Where string }
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || !body.Ready || len(body.Serves) < 2 {
		t.Errorf("%v: %+v", err, body)
	}
}

// TestAnEnvironmentSharedWithTheOthers checks that settings of router and agent alone are neither
// refused nor reported.
func TestAnEnvironmentSharedWithTheOthers(t *testing.T) {
	page, err := os.ReadFile("../../deploy/reference/config.md")
	if err != nil {
		t.Fatal(err)
	}
	env := []string{"CGN_ADMIN=127.0.0.1:9091", "CGN_SOMETHING=1"}
	for _, name := range regexp.MustCompile(
		`CGN_(ROUTER|PREFIX|ADMISSION|TIMEOUTS|RETRY|UPSTREAM_TLS|AGENT|ENGINE|LIMITS)_[A-Z_]+`).FindAllString(
		string(page), -1) {
		env = append(env, name+"=1")
	}
	if len(env) < 40 {
		t.Fatalf("the reference has %v only", env)
	}
	var out bytes.Buffer
	if err := run([]string{"--data", t.TempDir(), "--check-config"}, env, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "is in the environment and is no setting"); n != 1 {
		t.Errorf("%d are reported, not CGN_SOMETHING alone:\n%s", n, out.String())
	}
}

func TestCommandLine(t *testing.T) {
	data := "--data " + t.TempDir()
	for _, c := range []struct {
		name, args, out, err string
	}{
		{"version", "--version", "cgn-kvcached ", ""},
		{"help", "--help", "--resp", ""},
		{"as documented", data + " --check-config --ram 1GiB --ssd 4GiB --sock /tmp/kv.sock --resp 127.0.0.1:6380 --s3 127.0.0.1:9000 --quic 127.0.0.1:7072 --admin 127.0.0.1:9093", `listen = "127.0.0.1:7072"`, ""},
		{"unknown flag", "--redis=x", "", "--re"},
		{"exposed", data + " --check-config --resp :6380", "", "[[resp.users]]"},
		{"exposed peers", data + " --check-config --quic :7072", "", "cgn-ctl pki bootstrap"},
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
