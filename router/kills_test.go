package router_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// cold makes a router open no connections ahead. If a node resets a connection that was opened
// ahead, the router asks it again over a new connection.
func cold(c *router.Config) { c.Router.Warm = 0 }

// TestThreeOfFiveEndAtOnce checks that no client notices when two nodes are left. It runs alone: on
// a busy machine the nodes end one after the other, and a request has three attempts.
func TestThreeOfFiveEndAtOnce(t *testing.T) {
	for round := range 3 {
		s := serve(t, simulate(t, 5, func(c *engine.Config) { c.DecodeStep = 10 * time.Millisecond }))
		const requests = 40
		done := make(chan []*reply)
		go func() {
			done <- together(requests, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("question ", i), `,"max_tokens":100`))
			})
		}()
		eventually(t, "all requests are out", func() bool {
			return s.metrics().sum("cgn_router_node_in_flight") == requests
		})
		var ends sync.WaitGroup
		for _, e := range s.engines[:3] {
			ends.Go(e.Kill)
		}
		ends.Wait()
		mustAll(t, fmt.Sprint("round ", round), <-done)
	}
}

// TestPoison checks a request that ends each engine that gets it. The request ends two engines, and
// the others answer all other requests.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 5), cold)
	r := s.chat(chatBody("poison", plain), "x-sim-fault", "reset")
	if r.status != 503 || r.attempts() != "2" {
		t.Errorf("%v", r)
	}
	for _, part := range []string{"2 nodes were asked", "last: reset", "retry.max_nodes"} {
		if !strings.Contains(string(r.body), part) {
			t.Errorf("%q is not said: %s", part, r.body)
		}
	}
}

// TestRefusedAfterAReset checks nodes that refuse the connection. The nodes never had the request,
// so they do not count against its limit.
func TestRefusedAfterAReset(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3), cold)
	struck := make(chan *reply)
	go func() { struck <- s.chat(chatBody("alone", `,"max_tokens":500`)) }()
	eventually(t, "it is out", func() bool { return s.metrics().sum("cgn_router_node_in_flight") == 1 })
	left := s.engines
	for i, e := range left {
		if e.Stats().InFlight > 0 {
			left = slices.Delete(slices.Clone(left), i, i+1)
			left[0].Kill()
			e.Kill()
			break
		}
	}
	mustAll(t, "after two of three nodes have ended", []*reply{<-struck})
}
