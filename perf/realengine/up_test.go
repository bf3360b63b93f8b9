package realengine

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// TestLlamaUp: `cgn-ctl up --model` with llama-server in PATH starts two servers with their agents,
// routes by their caches, and leaves nothing behind.
func TestLlamaUp(t *testing.T) {
	s := prepared(t, "llama")
	listen, admin := free(t), free(t)
	path := "PATH=" + filepath.Dir(s.serve) + string(os.PathListSeparator) + os.Getenv("PATH")
	up := s.launch(t, "up", []string{path}, filepath.Join(s.bin, "cgn-ctl"), "up", "--model", s.model, "--listen",
		listen, "--admin", admin, "-o", "json")
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	w := &site{program: up, owner: t, setup: s, url: "http://" + listen, admin: "http://" + admin, client: client}
	within(t, soon, "two llama-servers are used", func() bool {
		if up.ended() {
			t.Fatalf("it ended: %v", up.cmd.ProcessState)
		}
		return w.eligible() == 2
	})
	servers := s.others(t, up)
	if len(servers) != 2 {
		t.Errorf("processes that were started: %v", servers)
	}
	w.repeats(t)
	if err := up.cmd.Process.Signal(syscall.SIGINT); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	select {
	case <-up.done:
	case <-time.After(soon):
		t.Fatal("it does not end on SIGINT")
	}
	if code := up.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	for _, pid := range servers {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("llama-server %d is still there: %v", pid, err)
		}
		_ = os.Remove(filepath.Join(s.run, "pids", strconv.Itoa(pid)))
	}
	if l, err := client.Get(w.url + "/health"); err == nil {
		l.Body.Close()
		t.Error("the router still answers")
	}
}

// repeats: the model in /v1/models is served, and a repeated prompt finds its cache.
func (w *site) repeats(t *testing.T) {
	var list struct{ Data []struct{ ID string } }
	if a := w.get("/v1/models"); !a.good() || json.Unmarshal(a.body, &list) != nil || len(list.Data) != 1 {
		t.Fatalf("/v1/models: %v", a)
	}
	for i := range 4 {
		body := chatBody(user(prose("up "+strconv.Itoa(i), 1500)), object{"model": list.Data[0].ID})
		first := w.must(t, "/v1/chat/completions", body)
		again := w.must(t, "/v1/chat/completions", body)
		w.mustReuse(t, first, again)
		c, _ := again.counts()
		t.Logf("%s: %d of %d prompt tokens found in the cache", again.node(), c.cached, c.prompt)
		body["stream"] = true
		if a := w.must(t, "/v1/chat/completions", body); !a.done() {
			t.Errorf("stream: %v", a)
		}
	}
}

// others returns the recorded processes except p.
func (s setup) others(t *testing.T, p *program) (pids []int) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.run, "pids"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && pid != p.cmd.Process.Pid {
			pids = append(pids, pid)
		}
	}
	return pids
}
