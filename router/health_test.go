package router_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// noRetries makes a router ask one node only, as with a spent budget.
func noRetries(c *router.Config) { c.Retry.MaxNodes = 0 }

func inTurn(c *router.Config) { c.Router.Mode = "round_robin" }

// TestLoneNodeAnswers500 checks a fleet of one failing node. The node shows as failing, the client
// gets the engine's own error, and the first good answers bring it back.
func TestLoneNodeAnswers500(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	s.engines[0].SetFault(&engine.Fault{Status: 500})
	for i := range 40 {
		r := s.chat(chatBody(fmt.Sprint("question ", i), streaming))
		if r.status != 500 || !bytes.Contains(r.body, []byte("fault on demand")) {
			t.Fatalf("request %d: %v", i, r)
		}
	}
	if n := s.nodes()["sim-0"]; n.State == "healthy" || n.Opens == 0 {
		t.Errorf("after 40 errors: %+v", n)
	}
	p := s.metrics()
	if p.sum("cgn_router_last_resort_total") == 0 || p.sum("cgn_router_node_breaker_opens_total") == 0 {
		t.Error("no metric tells")
	}
	eventually(t, "/readyz says so", func() bool { // after a while without an answer the node is on trial
		s.chat(chatBody("once more", streaming))
		status, page := s.get(s.admin + "/readyz")
		return status == 200 && bytes.Contains(page, []byte("no node is well"))
	})
	s.engines[0].SetFault(nil)
	eventually(t, "it is healthy again", func() bool {
		mustAll(t, "when it is well", []*reply{s.chat(chatBody("hello", plain))})
		return s.nodes()["sim-0"].State == "healthy"
	})
}

// TestOneOfThreeAnswers500WithoutRetries checks that a node goes out of service for the share of
// errors among its answers.
func TestOneOfThreeAnswers500WithoutRetries(t *testing.T) {
	s := serve(t, simulate(t, 3), noRetries, inTurn)
	s.engines[1].SetFault(&engine.Fault{Status: 500})
	failed := 0
	for i := range 120 {
		if r := s.chat(chatBody(fmt.Sprint("question ", i), plain)); r.status != 200 {
			failed++
		}
	}
	all := s.nodes()
	if all["sim-1"].Opens == 0 || all["sim-0"].Opens+all["sim-2"].Opens != 0 {
		t.Errorf("opened: %d %d %d times", all["sim-0"].Opens, all["sim-1"].Opens, all["sim-2"].Opens)
	}
	if failed > 25 {
		t.Errorf("%d of 120 failed", failed)
	}
}

// TestPoisonWithoutRetries checks that requests that fail on every node open no breaker, whether
// equal or different.
func TestPoisonWithoutRetries(t *testing.T) {
	t.Parallel()
	for name, prompt := range map[string]func(i int) string{
		"the same":  func(int) string { return "poison" },
		"different": func(i int) string { return fmt.Sprint("poison ", i) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 3), noRetries, inTurn)
			for i := range 120 {
				if r := s.chat(chatBody(prompt(i), plain), "x-sim-fault", "status=500"); r.status != 500 {
					t.Fatalf("request %d: %v", i, r)
				}
				if i%4 == 0 {
					mustAll(t, "in between", []*reply{s.chat(chatBody(fmt.Sprint("good ", i), plain))})
				}
			}
			for id, n := range s.nodes() {
				if n.State != "healthy" || n.Opens != 0 {
					t.Errorf("%s: %+v", id, n)
				}
			}
		})
	}
}

// eightSlots lets a node take eight requests at once.
func eightSlots(c *router.Config) {
	for i := range c.Router.Backends {
		c.Router.Backends[i] += ",max_concurrent=8"
	}
}

// TestABurstAtANodeThatIsBack checks a burst at a recovered node that no request has tried. Only
// health checks have brought that node back.
func TestABurstAtANodeThatIsBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ away, back func(e *engine.Engine) }{
		"refused":            {(*engine.Engine).Refuse, accept},
		"500":                {fault(engine.Fault{Status: 500}), noFault},
		"503, also /health":  {fault(engine.Fault{Status: 503, Path: "*"}), noFault},
		"hung":               {fault(engine.Fault{Hang: true}), noFault},
		"hung, also /health": {fault(engine.Fault{Hang: true, Path: "*"}), noFault},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, simulate(t, 2, func(c *engine.Config) { c.MaxSeqs = 8 }), eightSlots, hasty)
			mustAll(t, "warming up", together(8, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("warm ", i), streaming))
			}))
			c.away(s.engines[1])
			turn := 0
			eventually(t, "out of service", func() bool {
				turn++ // equal prompts might all go to the other node
				mustAll(t, "one is away", together(2, func(i int) *reply {
					return s.chat(chatBody(fmt.Sprint("hello ", turn, i), streaming))
				}))
				n := s.nodes()["sim-1"]
				return n.Opens > 0 && n.State != "healthy"
			})
			c.back(s.engines[1])
			eventually(t, "back without a request", func() bool { return s.nodes()["sim-1"].State == "healthy" })
			mustAll(t, "a burst that needs both", together(16, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("question ", i), streaming))
			}))
		})
	}
}

// TestABurstBeforeANodeIsBack checks that the node on trial takes the requests for which the others
// have no slot. While the node still fails, clients are told that all nodes are busy.
func TestABurstBeforeANodeIsBack(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), eightSlots) // waiting requests are not moved
	s.engines[1].SetFault(&engine.Fault{Status: 500})
	turn := 0
	eventually(t, "out of service", func() bool {
		turn++ // equal prompts might all go to the other node
		mustAll(t, "one is away", together(2, func(i int) *reply {
			return s.chat(chatBody(fmt.Sprint("hello ", turn, i), plain))
		}))
		return s.nodes()["sim-1"].Opens > 0
	})
	s.idle()
	s.engines[0].SetFault(&engine.Fault{Hang: true})
	held := make(chan []*reply, 1)
	go func() {
		held <- together(8, func(i int) *reply {
			return s.chat(chatBody(fmt.Sprint("held ", i), plain), "x-cgn-node", "sim-0")
		})
	}()
	eventually(t, "the other is full", func() bool { return s.nodes()["sim-0"].InFlight == 8 })
	for i := range 8 {
		if r := s.chat(chatBody(fmt.Sprint("early ", i), plain)); r.status != 503 || r.code() != "all_nodes_busy" ||
			r.header.Get("Retry-After") == "" {
			t.Errorf("while it fails: %v", r)
		}
	}
	s.engines[1].SetFault(nil)
	for i, r := range together(8, func(i int) *reply { return s.chat(chatBody(fmt.Sprint("question ", i), plain)) }) {
		mustAll(t, fmt.Sprint("question ", i), []*reply{r})
		if r.node() != "sim-1" && r.status == 200 {
			t.Errorf("question %d: %v", i, r)
		}
	}
	s.engines[0].SetFault(nil)
	<-held
}

// Test501IsAnAnswer checks that an engine that answers 501 for an endpoint stays healthy.
func Test501IsAnAnswer(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for i := range 40 {
		r := s.chat(chatBody(fmt.Sprint("question ", i), plain), "x-sim-fault", "status=501")
		if r.status != 501 || r.attempts() != "1" {
			t.Fatalf("request %d: %v", i, r)
		}
	}
	if n := s.nodes()["sim-0"]; n.State != "healthy" || n.Opens != 0 {
		t.Errorf("%+v", n)
	}
}
