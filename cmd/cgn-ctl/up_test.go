package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestUp runs the whole fleet, pastes the curl line and stops it with Ctrl-C.
func TestUp(t *testing.T) {
	out, in := io.Pipe()
	data := filepath.Join(t.TempDir(), "data")
	done := make(chan error, 1)
	var log strings.Builder
	go func() {
		root := newRoot(in, &log, os.Getenv)
		root.SetArgs([]string{"up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--engines", "2", "--routers", "2", "--data", data, "-o", "json"})
		err := root.ExecuteContext(context.Background())
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	var s summary
	if err := json.NewDecoder(out).Decode(&s); err != nil {
		t.Fatalf("%v, %v\n%s", err, <-done, log.String())
	}
	if len(s.Routers) != 2 || len(s.Nodes) != 2 || s.Model != simModel || s.Etcd == "" {
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
	if _, err := exec.LookPath("curl"); err != nil {
		t.Log("curl is not installed: the curl line was not run")
	} else {
		answer, err := exec.Command("sh", "-c", s.Curl).Output()
		if err != nil || !strings.Contains(string(answer), `"choices"`) {
			t.Errorf("the curl line: %v\n%s", err, answer)
		}
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Errorf("up: %v\n%s", err, log.String())
	}
	want(t, log.String(), "stopped router-1", "stopped agent-2", "stopped engine-1", "stopped etcd", "state is kept in "+data)
	if strings.Index(log.String(), "stopped router-1") > strings.Index(log.String(), "stopped agent-1") {
		t.Errorf("routers stop before agents:\n%s", log.String())
	}
}
