package router_test

import (
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// of returns /debug/route's entry for a node.
func (e *explanation) of(node string) candidate {
	for _, c := range e.Candidates {
		if c.Node == node {
			return c
		}
	}
	return candidate{}
}

// TestRequestsOfOtherRouters checks that another router's requests to a node count as its load
// here, by heartbeats and by the agent's stream. This router's own requests are not counted twice.
func TestRequestsOfOtherRouters(t *testing.T) {
	t.Parallel()
	for name, beat := range map[string]time.Duration{"heartbeats": heartbeat, "stream": cluster.MaxHeartbeat} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := startEtcd(t).endpoint
			engines := simulate(t, 2, func(c *engine.Config) { c.MaxSeqs, c.DecodeStep = 16, 20*time.Millisecond })
			for i, id := range []string{"a", "b"} {
				c, err := agentConfig(id, engines[i].URL(), etcd)
				if err != nil {
					t.Fatal(err)
				}
				c.Agent.Heartbeat, c.Agent.MaxConcurrent = config.Duration(beat), 16
				if name == "heartbeats" {
					c.Agent.Push = "off"
				}
				startAgent(t, c)
			}
			one, two := follow(t, etcd, 2), follow(t, etcd, 2)
			body := chatBody("hello", `,"stream":true,"max_tokens":100000`)
			for range 15 {
				defer one.begin("/v1/chat/completions", body, "x-cgn-node", "a").Body.Close()
			}
			seen := func(s *site) candidate { e := s.explain(chatBody("question", "")); return e.of("a") }
			eventually(t, "the other router sees them", func() bool { return seen(two).Others == 15 })
			if c := seen(two); c.Load > .1 || !c.Eligible {
				t.Errorf("with 15 of 16 slots taken: %+v", c)
			}
			if c := seen(one); c.Others != 0 || c.Load > .1 {
				t.Errorf("by whom they are: %+v", c)
			}
			for range 20 {
				if r := two.chat(chatBody("question", plain)); r.node() != "b" {
					t.Fatalf("%v, although a is all but full", r)
				}
			}
		})
	}
}

// TestRequestsOfDirectClients checks that requests that bypass all routers count as the node's load
// until they end.
func TestRequestsOfDirectClients(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, func(c *engine.Config) { c.DecodeStep = 20 * time.Millisecond })
	s := serve(t, engines, func(c *router.Config) {
		for i := range c.Router.Backends {
			c.Router.Backends[i] += ",max_concurrent=4"
		}
	})
	direct := &site{t: t, url: engines[0].URL(), client: s.client}
	body := chatBody("hello", `,"stream":true,"max_tokens":100000`)
	var streams []func() error
	for range 4 {
		streams = append(streams, direct.begin("/v1/chat/completions", body).Body.Close)
	}
	others := func() int { e := s.explain(chatBody("question", "")); return e.of("sim-0").Others }
	eventually(t, "they are seen", func() bool { return others() == 4 })
	for range 8 {
		if r := s.chat(chatBody("question", plain)); r.node() != "sim-1" {
			t.Fatalf("%v, although sim-0 is full", r)
		}
	}
	// A node with slots that seemed taken a while ago is still asked if no other node is left.
	if r := s.chat(chatBody("question", plain), "x-cgn-node", "sim-0"); r.status != 200 {
		t.Errorf("pinned: %v", r)
	}
	for _, end := range streams {
		end()
	}
	eventually(t, "they are over", func() bool { return others() == 0 })
}
