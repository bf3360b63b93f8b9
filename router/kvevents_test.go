package router_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/sim/engine"
)

// publishing makes an engine publish KV events.
func publishing(c *engine.Config) {
	c.BlockTokens, c.CacheBlocks = 32, 256
	c.KVEvents = &engine.KVEvents{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"}
}

// ids is a completion request for a prompt of n consecutive token ids, beginning with from.
func ids(from, n int, more map[string]any) string {
	tokens := make([]int, n)
	for i := range tokens {
		tokens[i] = from + i
	}
	body := map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1}
	for k, v := range more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// knows waits until the router reports exactly matched blocks of a prompt at a node.
func (s *site) knows(what, body, node string, matched int) {
	s.t.Helper()
	var e explanation
	defer func() {
		if s.t.Failed() {
			s.t.Logf("%+v", e)
		}
	}()
	eventually(s.t, what, func() bool {
		e = s.explainAs("completions", body)
		for _, c := range e.Candidates {
			if c.Node == node {
				return c.Matched == matched
			}
		}
		return false
	})
}

// exact checks that the router's report of an engine's cache equals the engine's own count. That
// must hold also after the engine drops blocks.
func (s *site) exact(e *engine.Engine, node string) {
	t := s.t
	t.Helper()
	pin := []string{"x-cgn-node", node}
	prompt := ids(1000, 100, nil)
	s.knows("nothing", prompt, node, 0)
	if r := s.post("/v1/completions", prompt, pin...); r.status != 200 {
		t.Fatal(r)
	}
	s.knows("96 of 100 tokens are whole blocks of 32", prompt, node, 6)
	longer := ids(1000, 200, nil)
	s.knows("they are the beginning of another prompt", longer, node, 6)
	if r := s.post("/v1/completions", longer, pin...); r.header.Get("x-cgn-overlap") != "6/12" ||
		!strings.Contains(string(r.body), `"cached_tokens":96`) {
		t.Errorf("%s: %s", r.header.Get("x-cgn-overlap"), r.body)
	}
	s.knows("all whole blocks", longer, node, 12)
	s.knows("none of another tenant", ids(1000, 200, map[string]any{"cache_salt": "tenant"}), node, 0)
	if r := s.post("/v1/completions", ids(1000, 64, map[string]any{"cache_salt": "tenant"}), pin...); r.status != 200 {
		t.Fatal(r)
	}
	s.knows("those of the tenant", ids(1000, 200, map[string]any{"cache_salt": "tenant"}), node, 4)
	for i := range 3 { // fills the whole cache
		if r := s.post("/v1/completions", ids(100_000*(i+1), 32*250, nil), pin...); r.status != 200 {
			t.Fatal(r)
		}
	}
	s.knows("nothing after evictions", longer, node, 0)
	if r := s.post("/v1/completions", longer, pin...); r.header.Get("x-cgn-overlap") != "0/12" ||
		strings.Contains(string(r.body), `"cached_tokens":96`) {
		t.Errorf("%s: %s", r.header.Get("x-cgn-overlap"), r.body)
	}
	s.knows("back", longer, node, 12)
}

// deaf makes a router follow no KV events.
func deaf(c *router.Config) { c.Prefix.KVEvents = false }

// heardNothing checks that the router does not know an engine's blocks, which another router knows
// by now, and that the router predicts them. The router follows a number of cache daemons.
func (s *site) heardNothing(node string, daemons float64) {
	t := s.t
	t.Helper()
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	prompt := ids(1000, 200, nil)
	s.knows("nothing is followed", prompt, node, 0)
	if r := s.post("/v1/completions", prompt); r.status != 200 {
		t.Fatal(r)
	}
	s.knows("the blocks are predicted", prompt, node, 12)
	m := s.metrics()
	for name, want := range map[string]float64{
		"caches": daemons, "caches_engines": 0, "kv_events_following": 0, "kv_events_untokenised": 0,
	} {
		if got := m.sum("cgn_router_" + name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

// TestStaticBackendsEvents checks that the router follows its backends' events itself.
func TestStaticBackendsEvents(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, publishing)
	pub, replay := engines[1].KVEndpoints()
	with := engines[1].URL() + ",id=sim-1,kv-events=" + pub + ",kv-replay=" + replay
	without := serve(t, nil, deaf, func(c *router.Config) { c.Router.Backends = []string{with} })
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0", with}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	eventually(t, "the events are followed", func() bool {
		return s.metrics().sum("cgn_router_kv_events_following", `node="sim-1"`) == 1 &&
			s.metrics().sum("cgn_router_caches_engines") == 1
	})
	s.exact(engines[1], "sim-1")
	without.heardNothing("sim-1", 0)

	before := s.chat(chatBody(strings.Repeat("text is not in the engine's tokens ", 20), ""), "x-cgn-node", "sim-1")
	if before.status != 200 {
		t.Fatal(before)
	}
	if again := s.chat(chatBody(strings.Repeat("text is not in the engine's tokens ", 20), ""), "x-cgn-node",
		"sim-1"); strings.HasPrefix(again.header.Get("x-cgn-overlap"), "0/") {
		t.Errorf("text is not predicted any more: %s", again.header.Get("x-cgn-overlap"))
	}
	if err := s.Reload(t.Context(), []fleet.Backend{{URL: engines[1].URL(), ID: "sim-1"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "they are followed no more", func() bool { return s.metrics().sum("cgn_router_caches_engines") == 0 })
}

// TestAgentsEvents checks that an agent reports to its host's cache daemon or, without one, to the
// routers.
func TestAgentsEvents(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"daemon", "certificates", "socket"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			etcd, certificates := startEtcd(t), t.TempDir()
			if err := pki.Bootstrap(certificates, pki.Options{}); err != nil {
				t.Fatal(err)
			}
			engines := simulate(t, 1, publishing)
			c, err := agentConfig("a", engines[0].URL(), etcd.endpoint)
			if err != nil {
				t.Fatal(err)
			}
			c.Events.Endpoint, c.Events.Replay = engines[0].KVEndpoints()
			switch way {
			case "daemon":
				d := cacheOf(t, "host-a", etcd.endpoint, certificates)
				c.Agent.KVAddress, c.Events.Report = d.At("quic"), d.At("grpc-sock")
			case "certificates":
				files := pki.FilesIn(certificates, pki.Agent)
				c.TLS = agent.TLSConfig{CA: files.CA, Cert: files.Cert, Key: files.Key}
				c.Events.Listen = "127.0.0.1:0"
			default:
				c.Events.Listen = "unix://" + filepath.Join(t.TempDir(), "events.sock")
			}
			startAgent(t, c)
			member := func(c *router.Config) {
				files := pki.FilesIn(certificates, pki.Router)
				c.Etcd.Endpoints = []string{etcd.endpoint}
				if way == "socket" { // the setting under test
					c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
				}
				c.Upstream = router.UpstreamTLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
			}
			without := serve(t, nil, deaf, member)
			s := serve(t, nil, member)
			eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
			eventually(t, "its engine reports", func() bool {
				return s.metrics().sum("cgn_router_caches_engines") == 1
			})
			s.exact(engines[0], "a")
			without.heardNothing("a", map[bool]float64{true: 1}[way == "daemon"])
			want := map[bool]float64{true: 0, false: 1}[way == "socket"]
			eventually(t, fmt.Sprintf("untokenised is %v", want), func() bool {
				return s.metrics().sum("cgn_router_kv_events_untokenised", `node="a"`) == want
			})
		})
	}
}

func TestEventsOfBackendsAreChecked(t *testing.T) {
	for option, want := range map[string]string{
		"kv-events=127.0.0.1:5557":                                                           "tcp://HOST:PORT",
		"kv-events=tcp://*:5557":                                                             "where the engine listens",
		"kv-replay=tcp://127.0.0.1:5558":                                                     "goes together",
		"kv-events=tcp://127.0.0.1:5557,kv-replay=@tcp://127.0.0.1:5558":                     "leave the @ out",
		"kv-events=@tcp://0.0.0.0:5557":                                                      "loopback",
		"kv-events=tcp://127.0.0.1:5557,kv-events=tcp://127.0.0.1:5558":                      "twice",
		"data_parallel_size=2,kv-events=ipc:///run/e.sock":                                   "option data_parallel_size: endpoint",
		"data_parallel_size=2,kv-events=tcp://127.0.0.1:5557,kv-replay=tcp://127.0.0.1:5558": "leave 2 ports or more between them",
	} {
		c := router.Config{Router: router.RouterConfig{Backends: []string{"http://127.0.0.1:8001," + option}}}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", option, err)
		}
	}
	c := router.Config{Router: router.RouterConfig{
		Backends: []string{"http://engines.example:8001,kv-events=tcp://engines.example:5557"},
	}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "by its address") {
		t.Error(fmt.Sprint(err))
	}
}
