package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/internal/load"
)

func TestNodeIsAnnounced(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Agent.Role, c.Agent.Device, c.Agent.TP, c.Agent.DType = "decode", "gpu", 2, "bfloat16"
	c.Agent.VRAM, c.Agent.MaxConcurrent = 80<<30, 128
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	var h *cluster.NodeHealth
	eventually(t, "ready in etcd", func() bool { h = announced(t, etcd, a.NodeID()); return h != nil && h.Ready })
	if h.Address != a.url() || h.Role != "decode" || h.Engine != "vllm" || !slices.Equal(h.Models, []string{"tiny"}) ||
		h.Device != "gpu" || h.TP != 2 || h.DType != "bfloat16" || h.VRAMBytes != 80<<30 || h.MaxConcurrent != 128 ||
		h.EngineSlots != 0 || h.HeartbeatS != c.Agent.Heartbeat.Std().Seconds() ||
		h.EngineVersion != "0.32.0" || h.KVEpoch != 1795244543000 || h.Version == "" || h.Stamp == 0 {
		t.Errorf("%+v", h)
	}
	for name, g := range map[string]struct {
		got  load.Gauge
		want float64
	}{
		"in_flight": {h.InFlight, 5}, "queue_depth": {h.QueueDepth, 2},
		"free_blocks": {h.FreeBlocks, 750}, "total_blocks": {h.TotalBlocks, 1000},
	} {
		if v, known := g.got.Get(); !known || v != g.want {
			t.Errorf("%s is %v, want %v", name, g.got, g.want)
		}
	}
	for name, g := range map[string]load.Gauge{
		"sm_pct": h.SMPct, "power_watts": h.Watts, "runq_us_p99": h.RunqUsP99, "engine_wait_pct": h.EngineWaitPct,
	} {
		if _, known := g.Get(); known {
			t.Errorf("%s is known, but nobody measures it", name)
		}
	}
	eventually(t, "CPU of the engine, which is this process, after a second heartbeat", func() bool {
		h := announced(t, etcd, a.NodeID())
		if h == nil {
			return false // the node's lease has expired on a slow machine; the node registers again
		}
		v, known := h.CPUPct.Get()
		return known && v >= 0 && v <= 100*float64(runtime.NumCPU()) && !h.Kernel.At.IsZero() && h.PushAddress != ""
	})
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
	if h := announced(t, etcd, a.NodeID()); h != nil {
		t.Errorf("still announced after the end: %+v", h)
	}
}

// TestSlotsAreAnnouncedApart: the engine's own number of slots is announced, but not as the
// operator's limit.
func TestSlotsAreAnnouncedApart(t *testing.T) {
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
		case "/metrics":
			io.WriteString(w, "sglang:num_running_reqs 0\nsglang:max_running_requests 48\n")
		}
	}))
	t.Cleanup(e.Close)
	for stated, want := range map[int]int{0: 0, 16: 16} {
		c := testConfig(t, e.URL)
		c.Engine.Kind, c.Agent.MaxConcurrent = "sglang", stated
		a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
		eventually(t, "the slots in etcd", func() bool {
			h := announced(t, etcd, a.NodeID())
			return h != nil && h.EngineSlots == 48 && h.MaxConcurrent == want
		})
		if err := a.stop(t); err != nil {
			t.Error(err)
		}
	}
}

func TestReadinessIsAnnouncedAtOnce(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Agent.Heartbeat = config.Duration(cluster.MaxHeartbeat)
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	ready := func(want bool) func() bool {
		return func() bool { h := announced(t, etcd, a.NodeID()); return h != nil && h.Ready == want }
	}
	eventually(t, "ready", ready(true))
	e.healthy.Store(false)
	eventually(t, "not ready, long before the next heartbeat", ready(false))
}

func TestDrainFinishesRequests(t *testing.T) {
	e := newFakeEngine(t)
	a, etcd := startAgent(t, testConfig(t, e.URL)), dialEtcd(t, shared.url)
	eventually(t, "ready", func() bool { h := announced(t, etcd, a.NodeID()); return h != nil && h.Ready })
	type answer struct {
		status int
		err    error
	}
	answered := make(chan answer, 1)
	go func() {
		resp, err := client.Post(a.url()+"/v1/completions", "", strings.NewReader("{}"))
		if err != nil {
			answered <- answer{err: err}
			return
		}
		resp.Body.Close()
		answered <- answer{resp.StatusCode, nil}
	}()
	<-e.arrived
	a.drain()
	eventually(t, "not ready while it drains",
		func() bool { h := announced(t, etcd, a.NodeID()); return h != nil && !h.Ready })
	if status, body := get(t, a.url()+"/health"); status != 503 || !strings.Contains(body, "agent is stopping") {
		t.Errorf("health while draining: %d %s", status, body)
	}
	if h := announced(t, etcd, a.NodeID()); h == nil {
		t.Error("left the fleet before the last request had finished")
	}
	e.finish <- struct{}{}
	if got := <-answered; got.err != nil || got.status != 200 {
		t.Errorf("the running request got %+v", got)
	}
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", a.nodes[0].listener.Addr().String()); err == nil {
		c.Close()
		t.Error("the front still accepts")
	}
}

func TestDrainHasABound(t *testing.T) {
	for name, cut := range map[string]func(*testAgent){
		"timeout": func(*testAgent) {},
		"force":   func(a *testAgent) { a.force() },
	} {
		t.Run(name, func(t *testing.T) {
			e := newFakeEngine(t)
			c := testConfig(t, e.URL)
			c.Etcd.Endpoints = nil
			if c.Agent.DrainTimeout = config.Duration(time.Hour); name == "timeout" {
				c.Agent.DrainTimeout = config.Duration(20 * time.Millisecond)
			}
			a := startAgent(t, c)
			failed := make(chan error, 1)
			go func() {
				resp, err := client.Post(a.url()+"/v1/completions", "", strings.NewReader("{}"))
				if err == nil {
					resp.Body.Close()
				}
				failed <- err
			}()
			<-e.arrived
			a.drain()
			cut(a)
			if err := a.stop(t); err != nil {
				t.Error(err)
			}
			if err := <-failed; err == nil {
				t.Error("the cut request looks answered")
			}
		})
	}
}

func TestDuplicateNodeIDIsFatal(t *testing.T) {
	e := newFakeEngine(t)
	first, etcd := startAgent(t, testConfig(t, e.URL)), dialEtcd(t, shared.url)
	eventually(t, "announced", func() bool { return announced(t, etcd, first.NodeID()) != nil })
	second := startAgent(t, testConfig(t, e.URL))
	var duplicate *cluster.DuplicateError
	select {
	case err := <-second.result:
		second.result <- err
		if !errors.As(err, &duplicate) || !strings.Contains(err.Error(), first.Address()) {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the second agent runs on")
	}
	if h := announced(t, etcd, first.NodeID()); h == nil || h.Address != first.Address() {
		t.Errorf("the first agent's node is %+v", h)
	}
}

func TestEtcdGoneAndBackEmpty(t *testing.T) {
	dir := t.TempDir()
	etcd, err := etcdserver.Start(filepath.Join(dir, "1"), freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	endpoint := etcd.Endpoint()
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Etcd.Endpoints = []string{endpoint}
	a, cl := startAgent(t, c), dialEtcd(t, endpoint)
	eventually(t, "announced", func() bool { h := announced(t, cl, a.NodeID()); return h != nil && h.Ready })
	if err := cl.PutCordon(t.Context(), a.NodeID(), cluster.Cordon{Reason: "disk"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd answers", func() bool { return a.status().Etcd == "connected" })
	if !a.status().Ready {
		t.Error("a cordon is the routers' affair and must not make the agent unready")
	}
	etcd.Close()
	eventually(t, "the outage is seen", func() bool { return a.status().Etcd == "lost" })
	if status, _ := get(t, a.url()+"/v1/models"); status != 200 {
		t.Errorf("without etcd: %d", status)
	}
	etcd, err = etcdserver.Start(filepath.Join(dir, "2"), strings.TrimPrefix(endpoint, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	eventually(t, "announced again", func() bool { h := announced(t, cl, a.NodeID()); return h != nil && h.Ready })
	eventually(t, "connected", func() bool { return a.status().Etcd == "connected" })
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
}

func TestAdminPort(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Etcd.Endpoints = nil
	a := startAgent(t, c)
	admin := "http://" + a.AdminAddr().String()
	if status, _ := get(t, admin+"/healthz"); status != 200 {
		t.Errorf("healthz: %d", status)
	}
	if status, body := get(t, admin+"/"); status != 404 || !strings.Contains(body, "/metrics, /readyz") {
		t.Errorf("the root: %d %s", status, body)
	}
	var s status
	eventually(t, "readyz is 200", func() bool {
		code, body := get(t, admin+"/readyz")
		s = status{}
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		return code == 200
	})
	if !s.Ready || s.Etcd != "off" || len(s.Nodes) != 1 || s.Nodes[0].Node != a.NodeID() ||
		!s.Nodes[0].Engine.Ready || s.Nodes[0].Engine.URL != e.URL {
		t.Errorf("%+v", s)
	}
	e.healthy.Store(false)
	eventually(t, "readyz is 503", func() bool { code, _ := get(t, admin+"/readyz"); return code == 503 })
	if status, _ := get(t, admin+"/debug/pprof/cmdline"); status != 200 {
		t.Errorf("pprof: %d", status)
	}
}

// TestMetricsAreDocumented compares the metrics that an agent exports with its table of metrics.
func TestMetricsAreDocumented(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Etcd.Endpoints = nil
	a := startAgent(t, c)
	eventually(t, "ready", a.ready)
	documented := map[string]bool{}
	for _, d := range Metrics() {
		documented[d.Name] = true
	}
	_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
	exported := 0
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, "# TYPE cgn_"); ok {
			name, _, _ := strings.Cut("cgn_"+rest, " ")
			exported++
			if !documented[name] {
				t.Errorf("%s is exported but not in the table", name)
			}
		}
	}
	if exported < 12 {
		t.Errorf("only %d metrics exported:\n%s", exported, page)
	}
	for _, want := range []string{"cgn_agent_ready 1", "cgn_agent_engine_running 3", "cgn_agent_engine_waiting 2",
		"cgn_agent_engine_kv_usage_ratio 0.25"} {
		name, value, _ := strings.Cut(want, " ")
		if want = fmt.Sprintf("%s{node=%q} %s", name, a.NodeID(), value); !strings.Contains(page, want+"\n") {
			t.Errorf("lacks %s", want)
		}
	}
}

func TestUnixSocketFront(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Etcd.Endpoints = nil
	sock := filepath.Join(t.TempDir(), "a.sock")
	c.Agent.Listen = "unix://" + sock
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: sock, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "agent.listen") {
		t.Errorf("a socket in use: %v", err)
	}
	left.SetUnlinkOnClose(false) // as after a kill
	left.Close()
	a := startAgent(t, c)
	if a.Address() != "unix://"+sock {
		t.Errorf("address %s", a.Address())
	}
	over := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", sock)
		}}}
	resp, err := over.Get("http://x/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// TestGPUModelIsAnnounced checks that the heartbeat has the name of the engine's GPUs.
func TestGPUModelIsAnnounced(t *testing.T) {
	c := testConfig(t, "http://127.0.0.1:1")
	c.Agent.TP = 2
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if h := a.nodes[0].health(); h.GPUModel != "" {
		t.Errorf("without NVML: %q", h.GPUModel)
	}
	of := func(index int, model string) gpu.Device {
		return gpu.Device{Name: strconv.Itoa(index), Index: index, Instance: -1, Model: model}
	}
	a.host.devices = func() []gpu.Device { return []gpu.Device{of(0, "H100"), of(1, "H100"), of(2, "L4")} }
	if h := a.nodes[0].health(); h.GPUModel != "H100" {
		t.Errorf("of the engine's two GPUs of three: %q", h.GPUModel)
	}
}

func TestNewReleasesWhatItOpened(t *testing.T) {
	c := testConfig(t, "http://127.0.0.1:1")
	c.TLS.Cert, c.TLS.Key = "missing", "missing"
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("got %v", err)
	}
	c = testConfig(t, "http://127.0.0.1:1")
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	if ln, err := net.Listen("tcp", a.nodes[0].listener.Addr().String()); err != nil {
		t.Error(err)
	} else {
		ln.Close()
	}
}
