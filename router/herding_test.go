package router_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

const slots = 8 // slots of each of eight nodes

// herd is eight engines with unlimited batches and, for the router, eight slots each.
func herd(t *testing.T, step time.Duration, tweak ...func(*router.Config)) *site {
	engines := simulate(t, 8, func(c *engine.Config) { c.DecodeStep = step })
	return serve(t, engines, append(tweak, func(c *router.Config) {
		for i := range c.Router.Backends {
			c.Router.Backends[i] += fmt.Sprint(",max_concurrent=", slots)
		}
	})...)
}

// shared is a request with a prompt of about 4000 bytes. The given percentage of the prompt is a
// common system prompt.
func shared(percent, i int, more string) string {
	const size = 4000
	system := document(0, size*percent/100)
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"system","content":%q},{"role":"user","content":%q}]%s}`,
		system, document(i+1, size-len(system)), more)
}

// outstanding records a client's number of running requests at each change.
type outstanding struct {
	mu      sync.Mutex
	history []int
}

// change adds by and returns the index in the history.
func (o *outstanding) change(by int) (at int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := 0
	if len(o.history) > 0 {
		last = o.history[len(o.history)-1]
	}
	o.history = append(o.history, last+by)
	return len(o.history) - 1
}

// most returns the highest count between two indices of the history, both included.
func (o *outstanding) most(from, to int) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Max(o.history[from : to+1])
}

// openLoad sends requests at the times of a seeded Poisson process, at rate requests per second,
// without waiting for answers. A request may be refused only if the client's own requests fill all
// slots.
func openLoad(t *testing.T, seed uint64, requests int, rate float64, all int,
	send func(i int) *reply) (replies []*reply, most int) {
	random := rand.New(rand.NewPCG(seed, 0))
	var out outstanding
	var wg sync.WaitGroup
	replies = make([]*reply, requests)
	timer := time.NewTimer(0)
	defer timer.Stop()
	due := time.Now()
	for i := range requests {
		<-timer.C
		wg.Go(func() {
			from := out.change(1)
			replies[i] = send(i)
			to := out.change(-1)
			if r := replies[i]; r.status != 503 {
				mustAll(t, "open load", []*reply{r})
			} else if n := out.most(from, to); n <= all {
				t.Errorf("request %d was refused with %d out, there are %d slots: %v", i, n, all, r)
			}
		})
		due = due.Add(time.Duration(random.ExpFloat64() / rate * float64(time.Second)))
		timer.Reset(time.Until(due))
	}
	wg.Wait()
	return replies, out.most(0, len(out.history)-1)
}

// TestNoHerding checks that a prompt common to all requests does not send all of them to one node.
// Requests of 1.6 s come 22 times a second, which fills 35 of 64 slots on average.
func TestNoHerding(t *testing.T) {
	t.Parallel()
	const requests, rate = 200, 22
	for _, percent := range []int{50, 70, 90} {
		t.Run(fmt.Sprint(percent), func(t *testing.T) {
			t.Parallel()
			s := herd(t, 100*time.Millisecond)
			replies, most := openLoad(t, uint64(percent), requests, rate, 8*slots, func(i int) *reply {
				return s.chat(shared(percent, i, `,"stream":true,"max_tokens":16`))
			})
			served := map[string]int{}
			for _, r := range replies {
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
			if busy < 5 {
				t.Errorf("answered by %v", served)
			}
			hit := float64(hits) / float64(queries)
			if hit < .9*float64(percent)/100 {
				t.Errorf("%.0f %% of the tokens were cached, %d %% are the same in all", 100*hit, percent)
			}
			t.Logf("%d out at most, %.0f %% cached, by node %v", most, 100*hit, served)
		})
	}
}

// TestEverySlotIsUsedBeforeAnyIsRefused checks that no request is refused while a slot is free,
// although one node holds nearly the whole prompt.
func TestEverySlotIsUsedBeforeAnyIsRefused(t *testing.T) {
	t.Parallel()
	s := herd(t, 10*time.Millisecond) // waiting requests are not moved
	mustAll(t, "warming up", []*reply{s.chat(shared(90, 0, plain))})
	s.idle()
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{StallAfter: new(int)})
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	var held sync.WaitGroup
	for i := range 8 * slots {
		held.Go(func() {
			resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions",
				shared(90, i, `,"stream":true,"max_tokens":2`))
			if err == nil {
				t.Errorf("request %d of as many as there are slots: %s", i, resp.Status)
				resp.Body.Close()
			}
		})
	}
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
	leave()
	held.Wait()
}
