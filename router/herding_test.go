package router_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/engine"
	"github.com/cognitora/dataplane/router"
)

const slots = 8 // of each of eight nodes

// herd is eight engines that would batch whatever they are sent, with eight slots each for the router.
func herd(t *testing.T) *site {
	engines := simulate(t, 8, func(c *engine.Config) { c.DecodeStep = 10 * time.Millisecond })
	return serve(t, engines, func(c *router.Config) {
		for i := range c.Router.Backends {
			c.Router.Backends[i] += fmt.Sprint(",max_concurrent=", slots)
		}
	})
}

// shared is a request whose prompt of about 4000 bytes begins with a system prompt that all have, of that percentage.
func shared(percent, i int, more string) string {
	const size = 4000
	system := document(0, size*percent/100)
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]%s}`,
		system, document(i+1, size-len(system)), more)
}

// TestNoHerding: a prompt that everybody shares does not draw everything to one node. Requests come every 5 ms, whatever
// became of those before, which fills nearly all slots of seven nodes.
func TestNoHerding(t *testing.T) {
	const requests = 240
	for _, percent := range []int{50, 70, 90} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			s := herd(t)
			atOnce := make(chan struct{}, 7*slots)
			replies := make(chan *reply, requests)
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for i := range requests {
				<-tick.C
				atOnce <- struct{}{}
				go func() {
					replies <- s.chat(shared(percent, i, `,"stream":true,"max_tokens":16`))
					<-atOnce
				}()
			}
			served := map[string]int{}
			for range requests {
				r := <-replies
				mustAll(t, "open load", []*reply{r})
				served[r.node()]++
			}
			s.idle()
			var hits, queries int64
			for i, e := range s.engines {
				stats := e.Stats()
				hits, queries = hits+stats.CacheHits, queries+stats.CacheQueries
				if stats.MaxRunning > slots {
					t.Errorf("sim-%d had %d requests at once, it has %d slots", i, stats.MaxRunning, slots)
				}
			}
			busy := 0
			for _, n := range served {
				if n > requests/16 {
					busy++
				}
			}
			if busy < 5 { // a loaded machine sends less than it should
				t.Errorf("answered by %v", served)
			}
			hit := float64(hits) / float64(queries)
			if hit < .9*float64(percent)/100 {
				t.Errorf("%.0f %% of the tokens were cached, %d %% are the same in all", 100*hit, percent)
			}
			t.Logf("%.0f %% cached, by node %v", 100*hit, served)
		})
	}
}

// TestEverySlotIsUsedBeforeAnyIsRefused although one node holds nearly all of the prompt.
func TestEverySlotIsUsedBeforeAnyIsRefused(t *testing.T) {
	t.Parallel()
	s := herd(t)
	mustAll(t, "warming up", []*reply{s.chat(shared(90, 0, plain))})
	s.idle()
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{StallAfter: new(int)})
	}
	done := make(chan []*reply, 1)
	go func() {
		done <- together(8*slots, func(i int) *reply {
			return s.chat(shared(90, i, `,"stream":true,"max_tokens":2`), "x-cgn-deadline-ms", "1500")
		})
	}()
	eventually(t, "every slot is taken", func() bool {
		for _, n := range s.nodes() {
			if n.InFlight != slots {
				return false
			}
		}
		return true
	})
	r := s.chat(shared(90, 0, plain))
	if r.status != 503 || r.code() != "all_nodes_busy" || r.header.Get("Retry-After") == "" {
		t.Errorf("one more than there are slots: %v", r)
	}
	if status, page := s.get(s.admin + "/readyz"); status != 200 {
		t.Errorf("readyz: %d %s", status, page)
	}
	for _, r := range <-done {
		if r.status == 503 || strings.Contains(string(r.body), "busy") {
			t.Errorf("refused: %v", r)
		}
	}
}
