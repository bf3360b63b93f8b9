package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// adapted gives an engine the adapters sql and chat, of which it can use one at a time.
func adapted(c *engine.Config) {
	c.Adapters = []engine.Adapter{{Name: "sql", Path: "/sql"}, {Name: "chat", Path: "/chat"}}
	c.MaxLoRAs = 1
}

// adapters returns what the router says of each node's adapters, as sim-0:chat+sql-.
func (s *site) adapters() string {
	s.t.Helper()
	_, page := s.get(s.admin + "/debug/fleet")
	var f struct {
		Nodes []struct {
			ID       string
			Adapters []struct {
				Name   string
				Loaded *bool
			}
		}
	}
	if err := json.Unmarshal(page, &f); err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, n := range f.Nodes {
		text := n.ID + ":"
		for _, a := range n.Adapters {
			switch {
			case a.Loaded == nil:
				text += a.Name + "?"
			case *a.Loaded:
				text += a.Name + "+"
			default:
				text += a.Name + "-"
			}
		}
		all = append(all, text)
	}
	return strings.Join(all, " ")
}

func (s *site) hasAdapters(want string) {
	s.t.Helper()
	var last string
	defer func() {
		if s.t.Failed() {
			s.t.Log(last)
		}
	}()
	eventually(s.t, want, func() bool { last = s.adapters(); return last == want })
}

// directly asks an engine past the router.
func directly(t *testing.T, e *engine.Engine, model string) {
	t.Helper()
	resp, err := http.Post(e.URL()+"/v1/completions", "application/json", strings.NewReader(
		`{"model":"`+model+`","prompt":"`+strings.Repeat("past the router ", 20)+`","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	if resp.Body.Close(); resp.StatusCode != 200 {
		t.Fatal(resp.Status)
	}
}

// slow says that the engines take long to load an adapter.
func slow(c *router.Config) {
	c.Models = []router.ModelConfig{{Name: "sim", AdapterLoad: config.Duration(20 * time.Second)}}
}

// TestRequestsStayWithTheirAdapter checks that requests for an adapter that takes long to load go
// to the node that has it, however it came to have it: by the router's requests, or by those of
// others, whom the engine's metrics tell of. Another node is asked once that one is full.
func TestRequestsStayWithTheirAdapter(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, adapted)
	directly(t, engines[0], "chat")
	directly(t, engines[1], "sql")
	s := serve(t, engines, slow, func(c *router.Config) { c.Router.Backends[1] += ",max_concurrent=2" })
	s.hasAdapters("sim-0:chat+sql- sim-1:chat-sql+")
	for adapter, node := range map[string]string{"sql": "sim-1", "chat": "sim-0"} {
		for i := range 10 {
			if r := s.chat(asking(adapter, fmt.Sprint("question ", i))); r.status != 200 || r.node() != node {
				t.Errorf("%s: %v", adapter, r)
			}
		}
		e := s.explain(asking(adapter, "another question"))
		for _, c := range e.Candidates {
			if here := c.Node == node; c.Eligible != here || c.Adapter != map[bool]string{true: "loaded",
				false: "not loaded"}[here] || here == strings.Contains(c.Reason, "would have to load the adapter") {
				t.Errorf("%s: explained as %+v", adapter, c)
			}
		}
	}
	if n := s.metrics().sum("cgn_router_filtered_total", `reason="adapter"`); n != 20 {
		t.Errorf("%v picks left a node out", n)
	}
	if n := s.metrics().sum("cgn_router_adapter_loads_total"); n != 0 {
		t.Errorf("%v requests had to wait for an adapter", n)
	}
	if r := s.chat(asking("sql", "pinned"), "x-cgn-node", "sim-0"); r.status != 200 {
		t.Error(r)
	}
	if n := s.metrics().sum("cgn_router_adapter_loads_total"); n != 1 {
		t.Errorf("%v requests had to wait for an adapter, want the pinned one", n)
	}
	s.hasAdapters("sim-0:chat-sql+ sim-1:chat-sql+")
	directly(t, engines[0], "chat") // sql is only at sim-1 again
	s.hasAdapters("sim-0:chat+sql- sim-1:chat-sql+")
	for range 2 {
		defer s.hang(asking("sql", "hangs"))()
	}
	eventually(t, "sim-1 is full", func() bool {
		return s.metrics().sum("cgn_router_node_in_flight", `node="sim-1"`) == 2
	})
	if r := s.chat(asking("sql", "sim-1 has no room")); r.status != 200 || r.node() != "sim-0" {
		t.Error(r)
	}
}

// TestBusyAdapterSpreads checks that a node with a queue does not keep the requests for its
// adapter.
func TestBusyAdapterSpreads(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, adapted, func(c *engine.Config) { c.MaxSeqs = 1 })
	directly(t, engines[0], "chat")
	directly(t, engines[1], "sql")
	s := serve(t, engines, slow)
	s.hasAdapters("sim-0:chat+sql- sim-1:chat-sql+")
	may := func() (nodes string) {
		for _, c := range s.explain(asking("sql", "question")).Candidates {
			if c.Eligible {
				nodes += c.Node + " "
			}
		}
		return nodes
	}
	if got := may(); got != "sim-1 " {
		t.Errorf("without a queue: %s", got)
	}
	ctx, leave := context.WithCancel(t.Context())
	var others sync.WaitGroup
	for range 2 { // one computes and one waits
		others.Go(func() {
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, engines[1].URL()+"/v1/completions",
				strings.NewReader(`{"model":"sql","prompt":"long","max_tokens":100000}`))
			if err != nil {
				t.Error(err)
				return
			}
			if resp, err := s.client.Do(r); err == nil {
				resp.Body.Close()
			}
		})
	}
	eventually(t, "both nodes may take it", func() bool { return may() == "sim-0 sim-1 " })
	leave()
	others.Wait()
	eventually(t, "the queue is over", func() bool { return may() == "sim-1 " })
}

// TestQuickAdaptersGoAnywhere checks that no node is left out while loading takes little time.
func TestQuickAdaptersGoAnywhere(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, adapted)
	directly(t, engines[0], "chat")
	directly(t, engines[1], "sql")
	s := serve(t, engines, func(c *router.Config) { c.Router.Mode = "round_robin" })
	s.hasAdapters("sim-0:chat+sql- sim-1:chat-sql+")
	for _, c := range s.explain(asking("sql", "question")).Candidates {
		if !c.Eligible {
			t.Errorf("%+v", c)
		}
	}
}

// TestAdaptersOfAgents checks that agents tell which adapters their engines have, and that KV
// events tell of adapters that ran too briefly for the metrics.
func TestAdaptersOfAgents(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	engines := simulate(t, 2, adapted)
	directly(t, engines[1], "sql")
	attach(t, "sim-0", engines[0], etcd)
	attach(t, "sim-1", engines[1], etcd)
	s := follow(t, etcd, 2)
	s.hasAdapters("sim-0:chat?sql? sim-1:chat-sql+")
	for labels, want := range map[string]float64{
		`node="sim-0",state="unknown"`: 2, `node="sim-1",state="loaded"`: 1, `node="sim-1",state="listed"`: 1,
	} {
		if got := s.metrics().sum("cgn_router_node_adapters", strings.Split(labels, ",")...); got != want {
			t.Errorf("%s: %v, want %v", labels, got, want)
		}
	}
	directly(t, engines[0], "chat")
	s.hasAdapters("sim-0:chat+sql- sim-1:chat-sql+")
	if m, _ := s.models(); m["sql"].Base != "sim" || m["chat"].Base != "sim" || m["sim"].Base != "" {
		t.Errorf("%+v", m)
	}
	const own = "the router knows of its own requests at once"
	if r := s.chat(asking("chat", own), "x-cgn-node", "sim-1"); r.status != 200 {
		t.Error(r)
	}
	if got := s.adapters(); got != "sim-0:chat+sql- sim-1:chat+sql-" {
		t.Error(got)
	}
}

// TestKVEventsTellOfAdapters checks that the router learns from KV events which adapter an engine
// uses, if its metrics do not tell.
func TestKVEventsTellOfAdapters(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, publishing, adapted)
	engines[0].SetFault(&engine.Fault{Path: "/metrics", Status: 404})
	pub, replay := engines[0].KVEndpoints()
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
	})
	eventually(t, "the events are followed", func() bool { return s.metrics().sum("cgn_router_caches_engines") == 1 })
	s.hasAdapters("sim-0:chat?sql?")
	directly(t, engines[0], "sql")
	s.hasAdapters("sim-0:chat?sql+")
	directly(t, engines[0], "chat")
	s.hasAdapters("sim-0:chat+sql?")
}

// TestAdapterThatCannotBeLoaded checks that an engine that refuses a request for an adapter does
// not count as having it.
func TestAdapterThatCannotBeLoaded(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1)
	engines = append(engines, simulate(t, 1, func(c *engine.Config) {
		c.LazyAdapters = []engine.Adapter{{Name: "lazy", Path: "/lazy"}}
	})...)
	s := serve(t, engines, func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "lazy", Base: "sim", AdapterLoad: config.Duration(20 * time.Second)}}
	})
	for node, status := range map[string]int{"sim-0": 404, "sim-1": 200} {
		if r := s.chat(asking("lazy", "hello"), "x-cgn-node", node); r.status != status {
			t.Errorf("%s: %v", node, r)
		}
	}
	if got := s.adapters(); got != "sim-0: sim-1:lazy+" {
		t.Error(got)
	}
	for i := range 6 {
		if r := s.chat(asking("lazy", fmt.Sprint("question ", i))); r.status != 200 || r.node() != "sim-1" {
			t.Error(r)
		}
	}
}

// TestLazyAdapter checks an adapter that engines load when the first request asks for it. Further
// requests go to the node that has loaded it.
func TestLazyAdapter(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3, func(c *engine.Config) {
		c.LazyAdapters = []engine.Adapter{{Name: "lazy", Path: "/lazy"}}
	})
	s := serve(t, engines, func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "lazy", Base: "sim", AdapterLoad: config.Duration(20 * time.Second)}}
	})
	nodes := map[string]bool{}
	for i := range 12 {
		r := s.chat(asking("lazy", fmt.Sprint("question ", i)))
		if r.status != 200 {
			t.Fatal(r)
		}
		nodes[r.node()] = true
	}
	loads := int64(0)
	for _, e := range engines {
		loads += e.AdapterLoads()
	}
	if len(nodes) != 1 || loads != 1 {
		t.Errorf("%d loads, served by %v", loads, nodes)
	}
	if n := s.metrics().sum("cgn_router_adapter_loads_total"); n != 1 {
		t.Errorf("%v requests had to wait for the adapter", n)
	}
	if status, page := s.get(s.url + "/v1/models"); status != 200 || !strings.Contains(string(page), `"lazy"`) {
		t.Errorf("%d %s", status, page)
	}
}

// TestBlocksOfAdaptersAreApart checks that a prompt's blocks count for its own model only:
// predicted ones, and those that KV events report. The events of an engine with adapters count for
// its base model.
func TestBlocksOfAdaptersAreApart(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, publishing, adapted)
	pub, replay := engines[0].KVEndpoints()
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
	})
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	eventually(t, "the events are followed", func() bool { return s.metrics().sum("cgn_router_caches_engines") == 1 })
	prompt := func(model string) string { return ids(1000, 100, map[string]any{"model": model}) }
	models := []string{"sql", "sim", "chat"}
	for i, model := range models {
		for k, other := range models {
			want := 0
			if k < i {
				want = 6 // 96 of the 100 tokens are whole blocks of 32, and the router predicts 6 of 16
			}
			s.knows(fmt.Sprintf("%s after %v", other, models[:i]), prompt(other), "sim-0", want)
		}
		if r := s.post("/v1/completions", prompt(model)); r.status != 200 || r.header.Get("x-cgn-overlap") != "0/6" ||
			strings.Contains(string(r.body), `"cached_tokens":96`) {
			t.Errorf("%s: %s %v", model, r.header.Get("x-cgn-overlap"), r)
		}
	}
	for _, model := range models {
		if r := s.post("/v1/completions", prompt(model)); r.header.Get("x-cgn-overlap") != "6/6" ||
			!strings.Contains(string(r.body), `"cached_tokens":96`) {
			t.Errorf("%s again: %s %v", model, r.header.Get("x-cgn-overlap"), r)
		}
	}
}
