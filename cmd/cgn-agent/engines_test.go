package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// host is an agent that has started several engines.
type host struct {
	*process
	admin           string
	fronts, engines []string
	pidFiles        []string
}

func startHost(t *testing.T, engines int) *host {
	t.Helper()
	dir, admin := t.TempDir(), freeAddress(t)
	h := &host{admin: admin}
	doc := fmt.Sprintf("[agent]\nnode_id = \"h\"\nadmin = %q\ndrain_delay = \"1ms\"\ndrain_timeout = "+
		"\"1h\"\n[telemetry]\nkernel = \"proc\"\n", admin)
	for i := range engines {
		h.fronts, h.engines = append(h.fronts, freeAddress(t)), append(h.engines, freeAddress(t))
		h.pidFiles = append(h.pidFiles, filepath.Join(dir, fmt.Sprint(i)))
		_, port, _ := strings.Cut(h.engines[i], ":")
		doc += fmt.Sprintf("[[engine]]\nid = %q\nlisten = %q\nkind = \"openai_compat\"\nbinary = %q\nport = %s\nargs "+
			"= [\"{port}\", %q]\nenv = [\"TEST_AS=engine\"]\nrestart_delay = \"10ms\"\n",
			fmt.Sprint(i), h.fronts[i], os.Args[0], port, h.pidFiles[i])
	}
	h.process = launch(t, doc)
	eventually(t, "all nodes are ready", func() bool { return h.ready() == engines })
	return h
}

// ready returns the number of nodes that take requests.
func (h *host) ready() (n int) {
	for _, front := range h.fronts {
		if healthy(front) {
			n++
		}
	}
	return n
}

func (h *host) metric(name string, node int) float64 {
	v, _ := metric(h.admin, fmt.Sprintf("%s{node=\"h-%d\"}", name, node), nil)
	return v
}

// TestEnginesOfOneHost checks that each engine has its own CPU time. A killed engine restarts and
// disturbs no other engine. All engines end with the agent.
func TestEnginesOfOneHost(t *testing.T) {
	h := startHost(t, 3)
	ctx, stop := context.WithCancel(t.Context())
	burning := make(chan struct{})
	go func() {
		defer close(burning)
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.engines[1]+"/burn", http.NoBody)
		if err != nil {
			return
		}
		if resp, err := client.Do(r); err == nil {
			resp.Body.Close()
		}
	}()
	const cpu = "cgn_agent_engine_cpu_seconds_total"
	eventually(t, "the engine that computes has the CPU time", func() bool {
		return h.metric(cpu, 1) > 1 && h.metric(cpu, 1) > 4*(h.metric(cpu, 0)+h.metric(cpu, 2)) &&
			h.metric("cgn_agent_engine_cpu_ratio", 1) > 2*h.metric("cgn_agent_engine_cpu_ratio", 0)
	})
	stop()
	<-burning

	stream, err := client.Post("http://"+h.fronts[0]+"/v1/completions", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	var pids []int
	for _, file := range h.pidFiles {
		pids = append(pids, pidIn(t, file))
	}
	if err := syscall.Kill(pids[2], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the one that was killed is started again", func() bool {
		return h.metric("cgn_agent_engine_restarts_total", 2) == 1 && h.ready() == 3 &&
			pidIn(t, h.pidFiles[2]) != pids[2]
	})
	if h.metric("cgn_agent_engine_restarts_total", 0)+h.metric("cgn_agent_engine_restarts_total", 1) != 0 ||
		pidIn(t, h.pidFiles[0]) != pids[0] || pidIn(t, h.pidFiles[1]) != pids[1] {
		t.Error("the others have been restarted too")
	}
	if n := h.metric("cgn_agent_in_flight", 0); n != 1 {
		t.Errorf("%g requests in flight on another engine, not its stream", n)
	}
	pids[2] = pidIn(t, h.pidFiles[2])

	if err := h.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all nodes say that they end", func() bool { return h.ready() == 0 })
	for i, pid := range pids {
		if gone(pid) {
			t.Errorf("engine %d was stopped before the requests had finished", i)
		}
	}
	stream.Body.Close() // the last request
	h.waitExit(t)
	if code := h.ProcessState.ExitCode(); code != 0 {
		t.Errorf("exit status %d", code)
	}
	for i, pid := range pids {
		if !gone(pid) {
			t.Errorf("engine %d outlived its agent", i)
		}
	}
}

// TestKernelTellsEnginesApart checks that the kernel programs count each engine's tokens and
// connections for its own node.
func TestKernelTellsEnginesApart(t *testing.T) {
	root := pinned(t)
	urls, fronts, admin := []string{streams(t), streams(t)}, []string{freeAddress(t), freeAddress(t)}, freeAddress(t)
	doc := fmt.Sprintf("[agent]\nnode_id = \"h\"\nadmin = %q\ndrain_delay = \"1ms\"\n[telemetry]\nkernel = "+
		"\"bpf\"\nbpf_root = %q\n", admin, root)
	for i := range urls {
		doc += fmt.Sprintf("[[engine]]\nid = \"%d\"\nlisten = %q\nkind = \"openai_compat\"\nurl = %q\n", i, fronts[i],
			urls[i])
	}
	p := launch(t, doc)
	eventually(t, "ready", func() bool { return healthy(fronts[0]) && healthy(fronts[1]) })
	count := func(format string, node int) float64 {
		v, _ := metric(admin, fmt.Sprintf(format, node), nil)
		return v
	}
	eventually(t, "the ports are watched", func() bool {
		_, ok := metric(admin, `cgn_agent_connections_opened_total{node="h-1",side="engine"}`, nil)
		return ok
	})
	for node, n := range []int{3, 7} {
		(&watcher{front: fronts[node]}).ask(t, n)
	}
	const ttft = `cgn_agent_kernel_ttft_seconds_count{node="h-%d"}`
	const unclear = `cgn_agent_kernel_unmeasured_total{node="h-%d",why="unclear"}`
	const opened = `cgn_agent_connections_opened_total{node="h-%d",side="front"}`
	streams := func(node int) float64 { return count(ttft, node) + count(unclear, node) }
	eventually(t, "each answer is counted for its node", func() bool { return streams(0) == 3 && streams(1) == 7 })
	if a, b := count(opened, 0), count(opened, 1); a < 3 || b < 7 {
		t.Errorf("%g and %g connections to the fronts", a, b)
	}
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.waitExit(t)
}

// TestReadyzOfSeveral checks that one unready node makes the agent unready and is named.
func TestReadyzOfSeveral(t *testing.T) {
	up := streams(t)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	admin, fronts := freeAddress(t), []string{freeAddress(t), freeAddress(t)}
	launch(t, fmt.Sprintf("[agent]\nnode_id = \"h\"\nadmin = %q\n[telemetry]\nkernel = \"off\"\n[[engine]]\nid = "+
		"\"up\"\nlisten = %q\nurl = %q\n[[engine]]\nid = \"down\"\nlisten = %q\nurl = %q\n",
		admin, fronts[0], up, fronts[1], down.URL))
	eventually(t, "one is ready", func() bool { return healthy(fronts[0]) })
	resp, err := client.Get("http://" + admin + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 503 ||
		!strings.Contains(string(text), `"node":"h-up","address":"http://`+fronts[0]+`","ready":true`) ||
		!strings.Contains(string(text), `"node":"h-down","address":"http://`+fronts[1]+`","ready":false`) {
		t.Errorf("%d %s, %v", resp.StatusCode, text, err)
	}
}
