package up

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestUpNamesTheFlagThatCannotWork(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "x.gguf")
	if err := os.WriteFile(file, []byte("no model"), 0o600); err != nil {
		t.Fatal(err)
	}
	used := t.TempDir()
	lock, err := lockData(used)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for args, want := range map[string]string{
		"--engines 0":                  "--engines 0: must be 1 to 64",
		"--engines many":               `--engines "many": must be a whole number`,
		"--routers 17":                 "--routers 17: must be 1 to 16",
		"--engine 3":                   "unknown flag: --engine|Did you mean --engines?",
		"--mode best":                  `--mode "best": must be score,`,
		"--listen 8080":                `--listen "8080": not an address|give HOST:PORT`,
		"--admin 127.0.0.1:70000":      `--admin "127.0.0.1:70000": not an address`,
		"--listen unix:///run/x":       "up listens on HOST:PORT only",
		"--listen :8080":               "--listen :8080: other hosts could reach it|--insecure-listen",
		"--model " + dir + "/no.gguf":  "--model: " + dir + "/no.gguf does not exist|--backend",
		"--model " + file:              "not a GGUF file",
		"--model=":                     "--model is empty",
		"--backend h:1":                `--backend: backend "h:1"`,
		"--backend http://h:1,ca=x":    "--backend: ",
		"--backend http://h --model x": "--backend and --model: give one of them",
		"--etcd-listen 2379":           `--etcd-listen "2379": not an address`,
		"--etcd-listen 127.0.0.1:1 --backend http://h:1": "--etcd-listen and --backend: give one of them",
		"--etcd-listen " + busy.Addr().String(): "--etcd-listen " + busy.Addr().String() +
			": the port is in use|--etcd-listen",
		"--backend http://h --engines 2":     "--backend and --engines: give one of them",
		"--prefill 2":                        "--prefill 2: no engine would answer|add --decode N",
		"--decode 2":                         "--decode 2: no engine would compute prompts for them|add --prefill N",
		"--prefill 0 --decode 2":             "--prefill 0: must be 1 to 64",
		"--prefill 2 --decode 65":            "--decode 65: must be 1 to 64",
		"--prefill 1 --decode 1 --engines 2": "--prefill and --engines: give --prefill and --decode, or",
		"--prefill 1 --decode 1 --model x": "--prefill and --model: llama.cpp hands no KV blocks|" +
			"leave --model away",
		"--cascade --engines 2":                       "--cascade and --engines: give one of them|docs/cascade.md",
		"--cascade --prefill 2":                       "--cascade and --prefill: give one of them",
		"--cascade --backend http://h:1":              "--cascade and --backend: give one of them",
		"--prefill 1 --decode 1 --backend http://h:1": "--prefill and --backend: |--backend URL,role=prefill",
		"--backend http://h:1 --routers ":             "flag needs an argument: --routers",
		"--data " + file:                              "--data " + file + ": |give a directory",
		"--data " + used: "the data directory is in use by process " +
			strconv.Itoa(os.Getpid()) + "|stop that one",
		"--listen 127.0.0.1:7 --admin 127.0.0.1:7": "--admin 127.0.0.1:7: cannot be listened on next to " +
			"--listen",
		"--backend http://h:1,api_key_file=" + dir + "/no": "--backend: option api_key_file: " + dir + "/no does " +
			"not exist; name a file",
		"--listen 192.0.2.1:1 --insecure-listen --data " + dir: "--listen 192.0.2.1:1: |give an address of this " +
			"machine",
	} {
		_, err := ctl(t, nil, append([]string{"up"}, strings.Fields(args)...)...)
		text, hint, _ := strings.Cut(want, "|")
		if err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("up %s: %v, hint %q; want %q", args, err, ctltest.Hint(err), want)
		}
	}
}

// awaitLine polls until a page contains a line.
func awaitLine(t *testing.T, url, line string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		resp, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains("\n"+string(page), "\n"+line+"\n") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s has no line %q", url, line)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// TestUp runs the whole fleet, runs the printed curl line, and stops the fleet with Ctrl-C.
func TestUp(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	etcd := free.Addr().String()
	_ = free.Close()
	s, stop := start(t, "--engines", "2", "--routers", "2", "--etcd-listen", etcd, "--data", data)
	if len(s.Routers) != 2 || len(s.Nodes) != 2 || s.Model != simModel || s.Etcd != etcd {
		t.Errorf("summary: %+v", s)
	}
	for _, r := range s.Routers {
		resp, err := http.Post("http://"+r.Listen+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"sim","messages":[{"role":"user","content":"Hello"}],"max_tokens":2}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != 200 || resp.Header.Get("x-cgn-node") == "" {
			t.Errorf("router %s: %s, headers %v", r.Listen, resp.Status, resp.Header)
		}
	}
	for _, r := range s.Routers { // nodes announce the cache's own address, so that the blocks it holds count
		awaitLine(t, "http://"+r.Admin+"/metrics", "cgn_router_caches_live 1")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("curl is not installed: the curl line was not run")
	} else {
		answer, err := exec.Command("sh", "-c", s.Curl).Output()
		if err != nil || !strings.Contains(string(answer), `"choices"`) {
			t.Errorf("the curl line: %v\n%s", err, answer)
		}
	}
	log := stop()
	ctltest.Want(t, log, "stopped router-1", "stopped agent-2", "stopped engine-1", "stopped etcd",
		"state is kept in "+data)
	if strings.Index(log, "stopped router-1") > strings.Index(log, "stopped agent-1") {
		t.Errorf("routers stop before agents:\n%s", log)
	}
}

// start runs `up` with free ports for the first router. stop ends it with Ctrl-C and returns its
// log.
func start(t *testing.T, args ...string) (s summary, stop func() string) {
	t.Helper()
	out, in := io.Pipe()
	done := make(chan error, 1)
	var log strings.Builder
	go func() {
		root := ctltest.Root(Command, in, &log, os.Getenv)
		root.SetArgs(append([]string{"up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "-o", "json"}, args...))
		err := root.ExecuteContext(context.Background())
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	if err := json.NewDecoder(out).Decode(&s); err != nil {
		t.Fatalf("%v, %v\n%s", err, <-done, log.String())
	}
	return s, func() string {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("up: %v\n%s", err, log.String())
		}
		return log.String()
	}
}

// TestUpDivided runs engines that compute prompts and one that answers, and the printed curl line.
func TestUpDivided(t *testing.T) {
	s, stop := start(t, "--prefill", "2", "--decode", "1", "--etcd-listen", "127.0.0.1:0")
	defer stop()
	resp, err := http.Post("http://"+s.Routers[0].Listen+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"sim","messages":[{"role":"user","content":"`+strings.Repeat("Hello ", 500)+`"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if h := resp.Header; resp.StatusCode != 200 || h.Get("x-cgn-node") != "decode-1" ||
		!strings.HasPrefix(h.Get("x-cgn-prefill-node"), "prefill-") {
		t.Errorf("%s, headers %v", resp.Status, resp.Header)
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("curl is not installed: the curl line was not run")
		return
	}
	answer, err := exec.Command("sh", "-c", s.Curl).Output()
	if err != nil || !strings.Contains(strings.ToLower(string(answer)), "x-cgn-prefill-node: prefill-") {
		t.Errorf("the curl line: %v\n%s", err, answer)
	}
}

// TestUpCascade checks that the small model answers some of the printed questions, and the large
// one the others.
func TestUpCascade(t *testing.T) {
	s, stop := start(t, "--cascade", "--etcd-listen", "127.0.0.1:0")
	defer stop()
	steps := map[string]int{}
	for _, q := range []string{"one", "two", "three", "four", "five", "six"} {
		if !strings.Contains(s.Curl, " "+q) {
			t.Errorf("%q is not in %s", q, s.Curl)
		}
		resp, err := http.Post("http://"+s.Routers[0].Listen+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"`+s.Model+`","messages":[{"role":"user","content":"`+q+`"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		steps[resp.Header.Get("x-cgn-cascade-step")]++
	}
	if len(steps) != 2 || steps["1"] == 0 || steps["2"] == 0 {
		t.Errorf("answers by step: %v", steps)
	}
}
