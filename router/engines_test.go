package router_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/sim/engine"
)

// hostConfig configures one agent for all engines of a host. The host's nodes are h-a, h-b and so
// on.
func hostConfig(t *testing.T, etcd, stateDir string, engines []*engine.Engine) agent.Config {
	t.Helper()
	c, err := agentConfig("h", "", etcd)
	if err != nil {
		t.Fatal(err)
	}
	c.Agent.Listen, c.Agent.StateDir = "127.0.0.1:9081", stateDir // the default value in short form
	c.GPU.NVML, c.Power.RAPL, c.Power.IPMIDevice = "off", "off", "off"
	for i, e := range engines {
		var one agent.EngineConfig
		if err := config.Defaults(&one); err != nil {
			t.Fatal(err)
		}
		one.ID, one.Listen, one.Engine.URL = string(rune('a'+i)), "127.0.0.1:0", e.URL()
		c.Engines = append(c.Engines, one)
	}
	return c
}

// host runs an agent until the test ends or stop is called.
func host(t *testing.T, c agent.Config) (a *agent.Agent, stop func()) {
	t.Helper()
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background()) }()
	stop = func() {
		cancel()
		if err, open := <-done; open {
			close(done)
			if err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(stop)
	return a, stop
}

// asker asks n different questions at once and names the nodes that have answered.
func asker(s *site) func(n int) (by string) {
	asked := 0
	return func(n int) string {
		s.t.Helper()
		nodes := map[string]bool{}
		for _, r := range together(n, func(i int) *reply {
			return s.chat(chatBody(fmt.Sprint("question ", asked+i), plain))
		}) {
			if r.status != 200 {
				s.t.Errorf("%v", r)
			}
			nodes[r.node()] = true
		}
		asked += n
		return strings.Join(slices.Sorted(maps.Keys(nodes)), " ")
	}
}

// TestSeveralEnginesBehindOneAgent checks that each engine of a host is a node of its own. A
// failure of one engine does not affect the others.
func TestSeveralEnginesBehindOneAgent(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	c := dialEtcd(t, etcd)
	if err := c.PutPolicy(t.Context(), []byte(`{"mode":"round_robin"}`)); err != nil {
		t.Fatal(err)
	}
	engines := simulate(t, 3)
	settings := hostConfig(t, etcd, t.TempDir(), engines)
	a, stop := host(t, settings)
	s := follow(t, etcd, 3)
	served := asker(s)
	if by := served(24); by != "h-a h-b h-c" {
		t.Errorf("%s answered, of three", by)
	}
	eventually(t, "one stream tells of all of them", func() bool {
		return s.metrics().sum("cgn_router_node_signals", `from="stream"`) == 3 &&
			agentMetric(t, a, "cgn_agent_push_routers") == "1"
	})

	engines[1].Close()
	served(48) // every request is answered
	eventually(t, "the node of the engine that died is out", func() bool { return s.eligible() == 2 })
	if by := served(16); by != "h-a h-c" {
		t.Errorf("%s answered after h-b's engine had died", by)
	}
	eventually(t, "its agent says so of that node alone", func() bool {
		return agentMetric(t, a, `cgn_agent_ready{node="h-b"}`) == "0" &&
			agentMetric(t, a, `cgn_agent_ready{node="h-c"}`) == "1"
	})

	if err := c.PutCordon(t.Context(), "h-a", cluster.Cordon{Reason: "disk", Drain: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one is drained", func() bool { return s.eligible() == 1 })
	if by := served(16); by != "h-c" {
		t.Errorf("%s answered while h-a was drained", by)
	}
	if _, err := c.Uncordon(t.Context(), "h-a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is back", func() bool { return s.eligible() == 2 })

	stop()
	eventually(t, "all nodes have left", func() bool { return s.metrics().sum("cgn_router_fleet_nodes") == 0 })
	if nodes, err := c.Nodes(t.Context()); err != nil || len(nodes) != 0 {
		t.Errorf("%d nodes in etcd after the agent's end, %v", len(nodes), err)
	}
	_, _ = host(t, settings)
	eventually(t, "the next agent's nodes", func() bool {
		return s.eligible() == 2 && s.metrics().sum("cgn_router_fleet_nodes") == 3
	})
	if by := served(16); by != "h-a h-c" {
		t.Errorf("%s answered after the restart", by)
	}
	eventually(t, "and its stream", func() bool {
		return s.metrics().sum("cgn_router_node_signals", `from="stream"`) == 3
	})
}

// agentMetric returns the value of an agent's metric, or "" while the agent does not export it.
func agentMetric(t *testing.T, a *agent.Agent, name string) string {
	t.Helper()
	resp, err := http.Get("http://" + a.AdminAddr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(page)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
