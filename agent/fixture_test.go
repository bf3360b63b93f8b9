package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
)

var shared struct {
	etcd *etcdserver.Server
	url  string
}

// TestMain starts one etcd for the tests that do not stop etcd.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "cgn-agent-test")
		if err != nil {
			panic(err)
		}
		defer os.RemoveAll(dir)
		if shared.etcd, err = etcdserver.Start(dir, "127.0.0.1:0"); err != nil {
			panic(err)
		}
		shared.url = shared.etcd.Endpoint()
		code := m.Run()
		shared.etcd.Close()
		if code != 0 {
			return code
		}
		return leaks()
	}())
}

func leaks() int {
	err := goleak.Find(
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"),
		goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

const patience = time.Minute // a test fails when an event takes longer

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

// fakeEngine answers as vLLM does.
type fakeEngine struct {
	*httptest.Server
	healthy atomic.Bool
	arrived chan struct{} // receives one value per request for a completion or an adapter
	finish  chan struct{} // each value ends one completion request
}

func newFakeEngine(t *testing.T) *fakeEngine {
	e := &fakeEngine{arrived: make(chan struct{}, 16), finish: make(chan struct{}, 16)}
	e.healthy.Store(true)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if !e.healthy.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"tiny"}]}`)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"version":"0.32.0"}`)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "process_start_time_seconds 1795244543\nvllm:num_requests_running "+
			"3\nvllm:num_requests_waiting 2\n"+
			"vllm:kv_cache_usage_perc 0.25\nvllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\"} 1\n")
	})
	mux.HandleFunc("POST /v1/load_lora_adapter", func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.arrived <- struct{}{}
		<-r.Context().Done()
	})
	mux.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		e.arrived <- struct{}{}
		select {
		case <-e.finish:
			fmt.Fprint(w, `{"choices":[]}`)
		case <-r.Context().Done():
		}
	})
	e.Server = httptest.NewServer(mux)
	t.Cleanup(e.Close)
	return e
}

func testConfig(t *testing.T, engineURL string) Config {
	c := *valid(func(*Config) {})
	c.Engine.URL, c.Engine.Kind = engineURL, "vllm"
	c.Agent.Listen, c.Agent.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Agent.NodeID = strings.ReplaceAll(t.Name(), "/", "-")
	c.Agent.Heartbeat = config.Duration(2 * time.Second)
	c.Agent.DrainDelay = config.Duration(time.Millisecond)
	c.Etcd.Endpoints = []string{shared.url}
	// the agent would announce the machine's own GPUs and power
	c.GPU.NVML, c.Power.RAPL, c.Power.IPMIDevice = "off", "off", "off"
	c.Telemetry.Kernel = "proc" // tests load no programs into the kernel
	c.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	return c
}

// testAgent is an agent under test.
type testAgent struct {
	*Agent
	drain, force context.CancelFunc
	result       chan error
}

func startAgent(t *testing.T, c Config) *testAgent {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	force, kill := context.WithCancel(context.Background())
	ctx, drain := context.WithCancel(force)
	ta := &testAgent{Agent: a, drain: drain, force: kill, result: make(chan error, 1)}
	go func() { ta.result <- a.Run(ctx, force) }()
	t.Cleanup(func() {
		ta.stop(t)
		kill()
	})
	return ta
}

// stop drains the agent and returns Run's error.
func (a *testAgent) stop(t *testing.T) error {
	t.Helper()
	a.drain()
	select {
	case err := <-a.result:
		a.result <- err
		return err
	case <-time.After(patience):
		t.Fatal("the agent did not stop")
		return nil
	}
}

func (a *testAgent) url() string { return "http://" + a.nodes[0].listener.Addr().String() }

// NodeID returns the id of the first node, Address its URL.
func (a *testAgent) NodeID() string { return a.Nodes()[0].ID }

func (a *testAgent) Address() string { return a.Nodes()[0].Address }

func (a *testAgent) ready() bool { return a.status().Ready }

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	resp, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func dialEtcd(t *testing.T, endpoint string) *cluster.Client {
	t.Helper()
	c, err := cluster.Dial(cluster.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// announced returns the node as it stands in etcd; nil if it is not there.
func announced(t *testing.T, c *cluster.Client, id string) *cluster.NodeHealth {
	t.Helper()
	nodes, err := c.Nodes(t.Context())
	if err != nil {
		return nil // some tests stop etcd
	}
	for _, n := range nodes {
		if n.ID == id {
			if n.Err != nil {
				t.Fatal(n.Err)
			}
			return n.Health
		}
	}
	return nil
}

func writeFile(t *testing.T, dir, name, content string) string {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}
