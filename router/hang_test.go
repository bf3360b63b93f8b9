package router_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

const plain = `,"max_tokens":8`

// hasty makes a router leave slow and silent nodes as early as local engines allow. Its tests run
// alone, because a busy machine looks like a slow node.
func hasty(c *router.Config) {
	c.Timeouts.PatienceFloor = config.Duration(100 * time.Millisecond)
	c.Timeouts.StallFloor = config.Duration(300 * time.Millisecond)
}

// kinds are the members that make a request streamed or plain.
var kinds = map[string]string{"stream": streaming, "plain": plain, "unbounded": ""}

// TestOneOfFourHangs checks a node that accepts requests and answers none. The node costs no
// request, and the next 16 requests do not notice the node.
func TestOneOfFourHangs(t *testing.T) {
	for _, start := range []string{"warm", "cold"} {
		for kind, more := range kinds {
			t.Run(start+"/"+kind, func(t *testing.T) { oneOfFourHangs(t, start == "warm", more) })
		}
	}
	t.Run("body", func(t *testing.T) {
		s := serve(t, simulate(t, 4), hasty, scored)
		sixteen(s, "warm", streaming)
		s.engines[1].SetFault(&engine.Fault{HangBody: true})
		mustAll(t, "one sends a head and nothing more", sixteen(s, "first", streaming))
	})
}

func sixteen(s *site, name, more string) []*reply {
	return together(16, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(name, " question ", i), more)) })
}

func oneOfFourHangs(t *testing.T, warm bool, more string) {
	s := serve(t, simulate(t, 4), hasty, scored)
	if warm {
		for i := range 3 {
			mustAll(t, "warming up", sixteen(s, fmt.Sprint("warm ", i), more))
		}
	}
	s.engines[1].SetFault(&engine.Fault{Hang: true})
	first := sixteen(s, "first", more)
	mustAll(t, "the first 16", first)
	if struck := s.engines[1].Stats().Faults; struck == 0 {
		t.Fatal("the hung node got none of the 16")
	}
	retried := 0
	for _, r := range first {
		if r.attempts() != "1" {
			retried++
		}
	}
	if retried == 0 {
		t.Error("nobody was retried")
	}
	if n := s.nodes()["sim-1"]; n.Eligible {
		t.Errorf("the hung node is not set aside: %+v", n)
	}
	next := sixteen(s, "next", more)
	mustAll(t, "the next 16", next)
	for _, r := range next {
		if r.attempts() != "1" || r.node() == "sim-1" {
			t.Errorf("of the next 16: %v", r)
		}
	}
}

// TestLongCallsBesideShortOnesAreKept checks calls without a bound on their tokens. The calls at
// one node are long, and those at its peer are short. The node answers a completion check.
func TestLongCallsBesideShortOnesAreKept(t *testing.T) {
	s := serve(t, simulate(t, 2, func(c *engine.Config) {
		if c.OutputTokens = 5; c.ID == "sim-1" {
			c.OutputTokens = 1000 // 2 s
		}
	}), hasty, inTurn)
	replies := sixteen(s, "long", "")
	mustAll(t, "half of them are long", replies)
	for _, r := range replies {
		if r.attempts() != "1" {
			t.Errorf("moved: %v", r)
		}
	}
	if n := s.metrics().sum("cgn_router_upstream_errors_total"); n != 0 {
		t.Errorf("%v attempts given up", n)
	}
}

// TestACallOnANodeSetAsideSaysSo checks that the access log gives the cause of a call that waited
// on a node set aside until its client left.
func TestACallOnANodeSetAsideSaysSo(t *testing.T) {
	file := filepath.Join(t.TempDir(), "access")
	s := serve(t, simulate(t, 2), hasty, inTurn, func(c *router.Config) { c.Log.Access = file })
	s.engines[1].SetFault(&engine.Fault{Hang: true})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	left := make(chan error, 1)
	go func() {
		_, err := s.send(ctx, "POST", "/v1/chat/completions", chatBody("hello", plain), "x-cgn-node", "sim-1")
		left <- err
	}()
	eventually(t, "the call is on the node", func() bool { return s.engines[1].Stats().Faults > 0 })
	mustAll(t, "streams", together(8, func(i int) *reply {
		return s.chat(chatBody(fmt.Sprint("question ", i), streaming))
	}))
	eventually(t, "set aside", func() bool { return s.nodes()["sim-1"].State == "aside" })
	leave()
	if err := <-left; err == nil {
		t.Error("the hung node has answered")
	}
	eventually(t, "the access log has the cause", func() bool {
		page, err := os.ReadFile(file)
		return err == nil && bytes.Contains(page, []byte(`"status":499,"end":"client_gone","cause":"node_set_aside"`))
	})
}

// traffic sends short, different requests, four at a time, until stopped.
type traffic struct {
	s       *site
	more    string
	replies chan *reply
	quit    chan struct{}
	done    chan []*reply
}

func (s *site) traffic(more string) *traffic {
	l := &traffic{s, more, make(chan *reply, 1024), make(chan struct{}), make(chan []*reply, 1)}
	go func() {
		l.done <- together(4, func(i int) *reply { l.worker(i); return nil })
		close(l.replies)
	}()
	return l
}

func (l *traffic) worker(i int) {
	for n := 0; ; n++ {
		select {
		case <-l.quit:
			return
		default:
			l.replies <- l.s.chat(chatBody(fmt.Sprint("worker ", i, " question ", n), l.more))
		}
	}
}

// until reads answers until seen returns true. Each answer must be good. until fails the test after
// bound.
func (l *traffic) until(bound time.Duration, what string, seen func(*reply) bool) {
	l.s.t.Helper()
	began := time.Now()
	for {
		select {
		case r := <-l.replies:
			mustAll(l.s.t, what, []*reply{r})
			if seen(r) {
				return
			}
		case <-time.After(bound - time.Since(began)):
			l.s.t.Errorf("not within %v: %s; %+v", bound, what, l.s.nodes())
			return
		}
	}
}

func (l *traffic) stop() {
	l.s.t.Helper()
	close(l.quit)
	for r := range l.replies {
		mustAll(l.s.t, "at the end", []*reply{r})
	}
	<-l.done
}

// share says whether a node gave at least part of the last n answers.
func share(node string, part float64, n int) func(*reply) bool {
	var last []bool
	return func(r *reply) bool {
		last = append(last, r.node() == node)
		last = last[max(0, len(last)-n):]
		own := 0
		for _, is := range last {
			if is {
				own++
			}
		}
		return len(last) == n && float64(own) >= part*float64(n)
	}
}

// TestReturnedNodeHasItsShare checks that a node has its share of the requests again, whichever way
// it was out of service. TestAReturningNodeIsBackWithinTwoSeconds of package health checks the time
// limit of two seconds in virtual time.
func TestReturnedNodeHasItsShare(t *testing.T) {
	for name, c := range map[string]struct {
		away, back func(e *engine.Engine)
		more       string
	}{
		"refused":    {(*engine.Engine).Refuse, accept, plain}, // a begun stream would end with the engine
		"killed":     {(*engine.Engine).Kill, accept, plain},
		"hung":       {fault(engine.Fault{Hang: true}), noFault, streaming},
		"hung plain": {fault(engine.Fault{Hang: true}), noFault, plain},
		"500":        {fault(engine.Fault{Status: 500}), noFault, streaming},
		"503":        {fault(engine.Fault{Status: 503, Path: "*"}), noFault, streaming},
		"reset":      {fault(engine.Fault{Reset: true}), noFault, streaming},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, simulate(t, 4), hasty)
			load := s.traffic(c.more)
			load.until(soon, "a fair share", share("sim-3", .15, 40))
			c.away(s.engines[3])
			load.until(soon, "out of service", func(*reply) bool {
				n := s.nodes()["sim-3"]
				return !n.Eligible && n.Opens > 0
			})
			c.back(s.engines[3])
			load.until(soon, "a fair share again", share("sim-3", .15, 40))
			load.stop()
		})
	}
}

func fault(f engine.Fault) func(*engine.Engine) { return func(e *engine.Engine) { e.SetFault(&f) } }
func noFault(e *engine.Engine)                  { e.SetFault(nil) }
func accept(e *engine.Engine)                   { _ = e.Accept() } // a node that does not return fails the test

// TestFlappingNodeStarvesNobody checks a node that fails and returns again and again. The node
// costs no request and gets few of the requests and retries.
func TestFlappingNodeStarvesNobody(t *testing.T) {
	for name, c := range map[string]struct{ away, back func(e *engine.Engine) }{
		"refuses":       {(*engine.Engine).Refuse, accept},
		"fails":         {fault(engine.Fault{Status: 500}), noFault},
		"fails by half": {fault(engine.Fault{Status: 500, Probability: .5}), func(*engine.Engine) {}},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 4), hasty)
			load := s.traffic(plain)
			served := map[string]int{}
			turn := time.Now()
			for flaps := 0; flaps < 6; {
				answers := 0 // a busy machine gives few
				load.until(soon, name, func(r *reply) bool {
					served[r.node()]++
					answers++
					return time.Since(turn) > 150*time.Millisecond && answers >= 25
				})
				if flaps++; flaps%2 == 1 {
					c.away(s.engines[0])
				} else {
					c.back(s.engines[0])
				}
				turn = time.Now()
			}
			noFault(s.engines[0])
			load.stop()
			total := 0
			for _, n := range served {
				total += n
			}
			for _, id := range []string{"sim-1", "sim-2", "sim-3"} {
				if served[id] < total/5 {
					t.Errorf("%s answered %d of %d", id, served[id], total)
				}
			}
			m := s.metrics()
			if n := m.sum("cgn_router_retries_total"); n > float64(total)/10 {
				t.Errorf("%v retries of %d requests", n, total)
			}
			t.Logf("%d requests, %v retries, by node %v", total, m.sum("cgn_router_retries_total"), served)
		})
	}
}

// TestSlowFleetIsNoRetryStorm makes all nodes ten times slower at once.
func TestSlowFleetIsNoRetryStorm(t *testing.T) {
	for kind, more := range kinds {
		t.Run(kind, func(t *testing.T) {
			s := serve(t, simulate(t, 4), hasty)
			for i := range 3 {
				mustAll(t, "warming up", sixteen(s, fmt.Sprint("warm ", i), more))
			}
			for _, e := range s.engines {
				e.SetFault(&engine.Fault{Slow: engine.Duration(600 * time.Millisecond)})
			}
			mustAll(t, "slow", together(96, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("slow question ", i), more))
			}))
			if n := s.metrics().sum("cgn_router_retries_total"); n > 4 {
				t.Errorf("%v retries of 96 requests", n)
			}
			for id, n := range s.nodes() {
				if n.State != "healthy" {
					t.Errorf("%s is %s", id, n.State)
				}
			}
		})
	}
}

// TestQueueingFleetIsNoRetryStorm sends more than the engines can batch, so every request waits.
func TestQueueingFleetIsNoRetryStorm(t *testing.T) {
	for start, rounds := range map[string]int{"warm": 3, "cold": 0} {
		t.Run(start, func(t *testing.T) {
			s := serve(t, simulate(t, 4, func(c *engine.Config) { c.MaxSeqs = 2 }), hasty)
			for i := range rounds {
				mustAll(t, "warming up", sixteen(s, fmt.Sprint("warm ", i), streaming))
			}
			mustAll(t, "queueing", together(200, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("queued question ", i), `,"stream":true,"max_tokens":32`))
			}))
			if n := s.metrics().sum("cgn_router_retries_total"); n > 4 {
				t.Errorf("%v retries of 200 requests", n)
			}
		})
	}
}

// TestColdRouterLeavesAHungNode checks that five answers of one node suffice to move the requests
// that wait at the other. The limit for a model of unknown speed is longer than a client waits.
func TestColdRouterLeavesAHungNode(t *testing.T) {
	s := serve(t, simulate(t, 2), hasty, inTurn, func(c *router.Config) {
		c.Timeouts.FirstByteCold = config.Duration(time.Hour)
	})
	s.engines[1].SetFault(&engine.Fault{Hang: true})
	mustAll(t, "cold", together(8, func(i int) *reply {
		return s.chat(chatBody(fmt.Sprint("question ", i), streaming))
	}))
	if n := s.metrics().sum("cgn_router_upstream_errors_total", `node="sim-1"`, `kind="slow"`); n == 0 {
		t.Error("nobody left the node because it was slow")
	}
}

// TestRetryBudget checks that retries stay within their share of the requests of any ten seconds
// when every node fails. A slow machine needs several periods of ten seconds, each with its floor.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4), func(c *router.Config) { c.Retry.Floor = 5 })
	began := time.Now()
	for range 5 {
		for _, r := range together(20, func(i int) *reply {
			return s.chat(chatBody(fmt.Sprint("question ", i), streaming), "x-sim-fault", "status=429")
		}) {
			if r.status != 429 {
				t.Errorf("%v", r)
			}
		}
	}
	m := s.metrics()
	most := 20 + 5*math.Floor(time.Since(began).Seconds()/9)
	if n := m.sum("cgn_router_retries_total"); n < 5 || n > most {
		t.Errorf("%v retries of 100 requests, %v are allowed", n, most)
	}
	if m.sum("cgn_router_retries_refused_total") == 0 {
		t.Error("no retry was refused")
	}
}
