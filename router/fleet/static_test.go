package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
)

func TestANodeJoinsWhenItAnswers(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	addr := l.Addr().String()
	l.Close()
	f := run(t, fast(Backend{URL: "http://" + addr}))
	if ready, why := f.Load().Ready(time.Now()); ready || !strings.Contains(why, "no node can take a request; "+addr) {
		t.Fatal(ready, why)
	}
	eventually(t, f, "refused", func(s *Snapshot) bool {
		_, why := s.Ready(time.Now())
		return strings.Contains(why, "connection refused")
	})
	e := newEngine(t, listen(t, "tcp", addr), "m")
	e.set(func(e *engine) { e.health = 503 }) // the engine loads its model
	eventually(t, f, "loading", func(s *Snapshot) bool {
		_, why := s.Ready(time.Now())
		return strings.Contains(why, "/health answers 503")
	})
	e.set(func(e *engine) { e.health = 404 }) // a server that has no /health
	eventually(t, f, "joined", serves("m", 1))
	if ready, why := f.Load().Ready(time.Now()); !ready {
		t.Fatal(why)
	}
	if info := f.Load().Nodes[0].Info(); info.Engine != "vllm" || info.MaxConcurrent != 0 {
		t.Fatalf("%+v", info)
	}
	e.set(func(e *engine) { e.models = []string{"m", "lora"} })
	eventually(t, f, "a model that was loaded later", serves("lora", 1))
}

func TestANodeLeavesAndReturns(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	addr := e.Listener.Addr().String()
	o := fast(Backend{URL: e.URL})
	f := run(t, o)
	eventually(t, f, "joined", serves("m", 1))
	n := f.Load().Nodes[0]
	ref := n.Ranks()[0].Ref()
	e.Close()
	eventually(t, f, "noticed", serves("m", 0))
	newEngine(t, listen(t, "tcp", addr), "m")
	eventually(t, f, "tried again", serves("m", 1))
	if n.Health.State() != health.HalfOpen {
		t.Fatalf("back as %v, want by trial requests", n.Health.State())
	}
	if v := n.View(time.Now()); !v.Eligible || v.Reason != health.OnTrial {
		t.Errorf("%+v does not say that it is on trial", v)
	}
	for range 3 {
		if !n.Acquire() {
			t.Fatal("no trial request")
		}
		n.Health.Report(health.OK)
		n.Release()
	}
	if n.Health.State() != health.Healthy || n != f.Load().Nodes[0] {
		t.Fatalf("%v after three answers", n.Health.State())
	}
	if n.Ranks()[0].Ref() == ref || o.Index.(*index).len() != 1 {
		t.Fatal("the restarted engine kept its blocks in the index")
	}
}

func TestModelNames(t *testing.T) {
	t.Parallel()
	one, two, none := newEngine(t, nil, "/models/llama.gguf"), newEngine(t, nil, "a", "b"), newEngine(t, nil)
	f := run(t, fast(Backend{URL: one.URL, Model: "llama", ID: "one"}, Backend{URL: two.URL, Model: "b", ID: "two"},
		Backend{URL: none.URL, Model: "x", ID: "none"}))
	for model, upstream := range map[string]string{"llama": "/models/llama.gguf", "b": "b", "x": "x"} {
		eventually(t, f, model, func(s *Snapshot) bool {
			return serves(model, 1)(s) && s.Model([]byte(model)).Nodes[0].UpstreamModel(model) == upstream
		})
	}
	if f.Load().Model([]byte("a")) != nil {
		t.Fatal("model= did not narrow the list")
	}
}

func TestANodeWithoutModelsIsAProblem(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil)
	f := run(t, fast(Backend{URL: e.URL}))
	eventually(t, f, "the problem", func(s *Snapshot) bool {
		_, why := s.Ready(time.Now())
		return strings.Contains(why, "give one with model=")
	})
	e.set(func(e *engine) { e.models = []string{"m"} })
	eventually(t, f, "solved", func(s *Snapshot) bool { return serves("m", 1)(s) && len(s.Problems) == 0 })
}

func TestUnixSocketAndKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "e.sock")
	e := newEngine(t, listen(t, "unix", path), "m")
	e.set(func(e *engine) { e.key = "sk-1" })
	f := run(t, fast(Backend{URL: "unix://" + path, ID: "without"},
		Backend{URL: "unix://" + path, ID: "with", APIKeyFile: write(t, "key", "sk-1\n")}))
	eventually(t, f, "with its key", serves("m", 1))
	eventually(t, f, "a hint without", func(s *Snapshot) bool {
		return strings.Contains(s.Node("without").whyNot(time.Now()), "api_key_file=")
	})
}

func TestKeysOfClients(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	e.set(func(e *engine) { e.key = "sk-1" })
	f := run(t, fast(Backend{URL: e.URL, ID: "keyless", Model: "m"},
		Backend{URL: e.URL, ID: "wrong", Model: "m", APIKeyFile: write(t, "key", "sk-2\n")}))
	eventually(t, f, "the node without a key", func(s *Snapshot) bool {
		ok, _ := s.Node("keyless").Eligible(time.Now())
		return ok
	})
	eventually(t, f, "the wrong key's hint", func(s *Snapshot) bool {
		return strings.Contains(s.Node("wrong").whyNot(time.Now()), "api_key_file=")
	})
}

func TestHTTPSBackend(t *testing.T) {
	t.Parallel()
	e := &engine{models: []string{"m"}, health: 200, asked: map[string]int{}}
	s := httptest.NewTLSServer(http.HandlerFunc(e.serve))
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	t.Cleanup(s.Close)
	ca := write(t, "ca.pem", pemOf(s.Certificate().Raw))
	f := run(t, fast(Backend{URL: s.URL, CA: ca, ID: "trusted"}, Backend{URL: s.URL, ID: "untrusted"}))
	eventually(t, f, "the trusted one", serves("m", 1))
	eventually(t, f, "the other's error", func(s *Snapshot) bool {
		return strings.Contains(s.Node("untrusted").whyNot(time.Now()), "certificate")
	})
}

const vllmPage = `vllm:num_requests_running{engine="0"} %d
vllm:num_requests_waiting{engine="0"} %d
vllm:kv_cache_usage_perc{engine="0"} 0.5
vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1
process_start_time_seconds %d
`

func TestTelemetry(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	e.set(func(e *engine) { e.metrics = fmt.Sprintf(vllmPage, 60, 10, 1000) })
	quiet := newEngine(t, nil, "q")
	f := run(t, fast(Backend{URL: e.URL, MaxConcurrent: 12}, Backend{URL: quiet.URL}))
	eventually(t, f, "a scrape", func(s *Snapshot) bool {
		return serves("m", 1)(s) && s.Model([]byte("m")).Nodes[0].Load().Waiting == 10
	})
	n := f.Load().Model([]byte("m")).Nodes[0]
	if l := n.Load(); l.InFlight != load.Known(70) || l.QueueDepth != load.Known(10) ||
		l.CacheUsage() != load.Known(0.5) || l.From != Metrics {
		t.Fatalf("%+v", l)
	}
	taken := 0
	for n.Acquire() {
		taken++
	}
	if taken != 2 {
		t.Fatalf("%d slots of 12 beside 10 waiting requests of others, want 2", taken)
	}
	eventually(t, f, "the block size", func(*Snapshot) bool { return n.Info().BlockTokens == 32 })
	ref := n.Ranks()[0].Ref()
	e.set(func(e *engine) { e.metrics = fmt.Sprintf(vllmPage, 0, 0, 2000) })
	eventually(t, f, "the restart seen in its start time",
		func(*Snapshot) bool { return n.Ranks()[0].Ref() != ref && n.Load().Waiting == 0 })

	eventually(t, f, "the other one", serves("q", 1))
	q := f.Load().Model([]byte("q")).Nodes[0]
	if l := q.Load(); !reflect.DeepEqual(*l, Load{From: Nobody}) {
		t.Fatalf("without /metrics: %+v", l)
	}
	if e.count("/metrics") > 4 || quiet.count("/metrics") > 1 {
		t.Fatalf("scraped %d and %d times", e.count("/metrics"), quiet.count("/metrics"))
	}
}

// TestEngineSlots checks that an engine's number of slots is known however the engine tells it. The
// number is not an operator's limit.
func TestEngineSlots(t *testing.T) {
	t.Parallel()
	var slots atomic.Int32
	slots.Store(6)
	llama := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"l","owned_by":"llamacpp"}]}`)
		case "/props":
			fmt.Fprintf(w, `{"total_slots":%d}`, slots.Load())
		case "/health":
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(llama.Close)
	sglang := newEngine(t, nil, "s")
	sglang.set(func(e *engine) { e.metrics = "sglang:num_running_reqs 0\nsglang:max_running_requests 48\n" })
	silent := newEngine(t, nil, "v")
	f := run(t, fast(Backend{URL: llama.URL, MaxConcurrent: 3}, Backend{URL: sglang.URL}, Backend{URL: silent.URL}))
	info := func(model string) *Info { return f.Load().Model([]byte(model)).Nodes[0].Info() }
	told := func(model string, want int32) {
		t.Helper()
		eventually(t, f, "the slots of "+model, func(s *Snapshot) bool {
			return serves(model, 1)(s) && info(model).EngineSlots == want
		})
	}
	told("l", 6)
	told("s", 48)
	told("v", 0)
	if l, s := info("l"), info("s"); l.MaxConcurrent != 3 || s.MaxConcurrent != info("v").MaxConcurrent {
		t.Errorf("stated: %d of llama.cpp, %d of SGLang", l.MaxConcurrent, s.MaxConcurrent)
	}
	slots.Store(9)
	told("l", 9)
	for said, want := range map[float64]int32{-1: 0, 0: 0, 1: 1, 1 << 20: 1 << 20, 1<<20 + 1: 0} {
		if got := slotsOf(said); got != want {
			t.Errorf("%g slots count as %d, want %d", said, got, want)
		}
	}
}

// TestEngineVersion checks that a vLLM's version is known, also after an upgrade.
func TestEngineVersion(t *testing.T) {
	t.Parallel()
	e, silent := newEngine(t, nil, "v"), newEngine(t, nil, "s")
	e.set(func(e *engine) { e.version = "0.11.0" })
	f := run(t, fast(Backend{URL: e.URL}, Backend{URL: silent.URL}))
	told := func(model, want string) {
		t.Helper()
		eventually(t, f, model+" has version "+want, func(s *Snapshot) bool {
			return serves(model, 1)(s) && s.Model([]byte(model)).Nodes[0].Info().EngineVersion == want
		})
	}
	told("v", "0.11.0")
	told("s", "")
	e.set(func(e *engine) { e.version = "0.32.0" })
	told("v", "0.32.0")
	if got := f.Load().Model([]byte("v")).Nodes[0].View(time.Now()).EngineVersion; got != "0.32.0" {
		t.Errorf("the view has version %q", got)
	}
	e.set(func(e *engine) { e.version = strings.Repeat("9", maxVersion+1) })
	told("v", "")
}

func TestReloadKeepsWhatIsUnchanged(t *testing.T) {
	t.Parallel()
	a, b, c := newEngine(t, nil, "m"), newEngine(t, nil, "m"), newEngine(t, nil, "m")
	o := fast(Backend{URL: a.URL, ID: "a"}, Backend{URL: b.URL, ID: "b"})
	f := run(t, o)
	eventually(t, f, "joined", serves("m", 2))
	na, nb := f.Load().Node("a"), f.Load().Node("b")
	na.AcquireAlways()
	nb.AcquireAlways()
	ctx := context.Background()
	if err := f.Reload(ctx, []Backend{{URL: "nonsense"}}); err == nil || len(f.Load().Nodes) != 2 {
		t.Fatal("a bad list was taken")
	}
	if err := f.Reload(ctx, []Backend{{URL: a.URL, ID: "a", MaxConcurrent: 7}, {URL: c.URL, ID: "c"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, f, "the new list", func(s *Snapshot) bool {
		return s.Node("c") != nil && s.Node("b") == nil && serves("m", 2)(s)
	})
	if s := f.Load(); s.Node("a") != na || na.InFlight() != 1 || na.MaxConcurrent() != 7 {
		t.Fatalf("a changed: %+v", na.View(time.Now()))
	}
	if ok, reason := nb.Eligible(time.Now()); ok || reason != "left the fleet" || o.Index.(*index).len() != 2 {
		t.Fatal("b is still in service", reason)
	}
	if ex, err := nb.Pool.Send(&relay.Request{Method: "GET", Path: "/health"},
		time.Now().Add(time.Minute)); err != nil {
		t.Fatal("the pool closed under a request:", err)
	} else {
		ex.Close()
	}
	nb.Release()
	eventually(t, f, "b's pool closed", func(*Snapshot) bool {
		ex, err := nb.Pool.Send(&relay.Request{Method: "GET", Path: "/health"}, time.Now().Add(time.Minute))
		if err == nil {
			ex.Close()
		}
		return err != nil
	})
}

func TestADNSNameIsOneNodePerAddress(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	_, port, _ := net.SplitHostPort(l.Addr().String())
	newEngine(t, l, "m")
	newEngine(t, listen(t, "tcp", "127.0.0.2:"+port), "m")
	r := &names{}
	r.set(fmt.Errorf("no such host"))
	o := fast(Backend{URL: "http://engines.test:" + port})
	o.Resolver = r
	f := run(t, o)
	eventually(t, f, "the failed look-up", func(s *Snapshot) bool {
		_, why := s.Ready(time.Now())
		return strings.Contains(why, "no such host")
	})
	r.set(nil, "127.0.0.2", "127.0.0.1", "::1")
	eventually(t, f, "both addresses", func(s *Snapshot) bool { return serves("m", 2)(s) && len(s.Problems) == 0 })
	kept := f.Load().Node("engines.test:" + port + "@127.0.0.2")
	if kept == nil || len(f.Load().Nodes) != 2 {
		t.Fatalf("%+v", f.Load().View(time.Now()))
	}
	r.set(nil, "127.0.0.2")
	eventually(t, f, "one address", serves("m", 1))
	r.set(fmt.Errorf("server is down"))
	eventually(t, f, "the failure", func(s *Snapshot) bool { return len(s.Problems) == 1 })
	if f.Load().Nodes[0] != kept || !serves("m", 1)(f.Load()) {
		t.Fatal("a failed look-up cost a node")
	}
}

func TestAHangingNodeIsAskedForAToken(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	var hang atomic.Bool
	hang.Store(true)
	e.set(func(e *engine) {
		e.complete = func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			if !bytes.Contains(body, []byte(`"max_tokens":1`)) || !bytes.Contains(body, []byte(`"model":"m"`)) {
				w.WriteHeader(400)
			} else if hang.Load() {
				<-r.Context().Done()
			}
		}
	})
	f := run(t, fast(Backend{URL: e.URL}))
	eventually(t, f, "joined", serves("m", 1))
	n := f.Load().Nodes[0]
	n.Health.SetAside("its peers move on")
	eventually(t, f, "asked", func(*Snapshot) bool { return e.count("/v1/completions") > 0 })
	if n.Health.State() != health.Aside {
		t.Fatalf("%v while it hangs", n.Health.State())
	}
	hang.Store(false)
	eventually(t, f, "on trial, and then back", func(*Snapshot) bool { return n.Health.State() == health.Healthy })
}

func TestViewIsJSON(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "raw")
	f := run(t, fast(Backend{URL: e.URL, Model: "nice", ID: "n"}))
	eventually(t, f, "joined", serves("nice", 1))
	eventually(t, f, "discovered", func(s *Snapshot) bool { return s.Nodes[0].UpstreamModel("nice") == "raw" })
	view := f.Load().View(time.Now())
	out, err := json.Marshal(view)
	if err != nil {
		t.Fatal(err)
	}
	v := view.Nodes[0]
	if v.State != "healthy" || !v.Eligible || !slices.Equal(v.Upstream, []string{"raw"}) ||
		v.Signals.Load.GPU != (load.GPU{}) || view.Models[0].Nodes[0] != "n" {
		t.Fatalf("%s", out)
	}
}
