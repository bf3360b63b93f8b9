package agent

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestHandoverBehindAgents: one engine prefills behind its agent, and another one decodes behind
// its own. The agents announce what a router needs to know for it.
func TestHandoverBehindAgents(t *testing.T) {
	etcd := dialEtcd(t, shared.url)
	engines := map[string]*engine.Engine{}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(role, members string) (answer struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}) {
		sim, err := engine.New(engine.Config{Models: []string{"sim"}, Connector: engine.ConnectorNIXL, ID: role})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { sim.Close() })
		engines[role] = sim
		c := testConfig(t, sim.URL())
		c.Agent.NodeID, c.Agent.Role = t.Name()+"-"+role, role
		a := startAgent(t, c)
		var h *cluster.NodeHealth
		eventually(t, "ready", func() bool { h = announced(t, etcd, a.NodeID()); return h != nil && h.Ready })
		if h.Connector != cluster.ConnectorNIXL || h.Role != cluster.Role(role) {
			t.Errorf("%s announces %+v", role, h)
		}
		body := fmt.Sprintf(`{"model":"sim","prompt":%q,%s}`, strings.Repeat("the same words ", 100), members)
		resp, err := client.Post(h.Address+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp.StatusCode, err)
		}
		return answer
	}
	prefilled := post("prefill", `"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false}`)
	if !strings.Contains(string(prefilled.Params), "remote_block_ids") {
		t.Fatalf("no block is handed over: %s", prefilled.Params)
	}
	t.Logf("handed over: %s", prefilled.Params)
	post("decode", `"max_tokens":9,"kv_transfer_params":`+string(prefilled.Params))
	if s := engines["decode"].Stats(); s.WrongBlocks != 0 || s.LostBlocks != 0 || s.ReceivedTokens == 0 {
		t.Errorf("%+v", s)
	}
}

func TestConnectorIsAnnounced(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Agent.Role, c.Engine.Connector, c.Engine.Bootstrap = "prefill", "mooncake", ":9001"
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	var h *cluster.NodeHealth
	eventually(t, "ready in etcd", func() bool { h = announced(t, etcd, a.NodeID()); return h != nil && h.Ready })
	if h.Connector != "mooncake" || h.Bootstrap != ":9001" || h.Role != "prefill" {
		t.Errorf("%+v", h)
	}
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
}

// TestHandoverAdvice: an agent that other hosts reach warns if they cannot reach what its engine
// says about blocks.
func TestHandoverAdvice(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"an attached sglang", func(c *Config) { c.Engine.Kind = "sglang" }, "engine.url: the bootstrap server of an SGLang"},
		{"only this host", func(c *Config) { c.Engine.Kind, c.Agent.Listen = "sglang", "127.0.0.1:9081" }, ""},
		{"only this host, advertised", func(c *Config) { c.Engine.Kind, c.Agent.Advertise = "sglang", "http://localhost:1" }, ""},
		{"decode", func(c *Config) { c.Engine.Kind, c.Agent.Role = "sglang", "decode" }, ""},
		{"no role", func(c *Config) { c.Engine.Kind, c.Agent.Role = "sglang", "both" }, ""},
		{"another host", func(c *Config) { c.Engine.URL = "http://10.0.0.7:8000" }, ""},
		{"a started sglang", func(c *Config) {
			c.Engine.Kind, c.Engine.URL, c.Engine.Model, c.Engine.KVOffload = "sglang", "", "m", "nixl"
		}, "engine.host: 127.0.0.1 is where the bootstrap server"},
		{"a bootstrap server of this host", func(c *Config) {
			c.Engine.Connector, c.Engine.Bootstrap = "mooncake", "localhost:8998"
		}, `engine.bootstrap: "localhost:8998" is of this host alone`},
	} {
		config := valid(func(c *Config) {
			c.Agent.Listen, c.Agent.InsecureListen, c.Agent.Role = ":9081", true, "prefill"
			c.Engine.Kind = "vllm"
		})
		c.change(config)
		if err := config.Validate(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		notes := strings.Join(config.Advise(), "; ")
		if !strings.HasPrefix(notes, c.want) || c.want == "" && notes != "" {
			t.Errorf("%s: %s", c.name, notes)
		}
	}
}
