package router_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// divided is a router in front of simulated engines that compute prompts and others that answer.
type divided struct {
	*site
	prefills, decodes []*engine.Engine // named prefill-0, … and decode-0, …
	plain             *engine.Engine   // behind no router
}

// divide starts a router in mode score with engines that hand blocks over as vLLM's NIXL does.
func divide(t *testing.T, prefills, decodes int, tweak ...func(*router.Config)) *divided {
	t.Helper()
	engines := simulate(t, prefills+decodes, handing)
	return divideAmong(t, engines[:prefills], engines[prefills:], tweak...)
}

// handing is a tweak for engines that hand blocks over.
func handing(c *engine.Config) { c.Connector, c.BlockLease = "nixl", time.Second }

// divideAmong is divide for given engines.
func divideAmong(t *testing.T, prefills, decodes []*engine.Engine, tweak ...func(*router.Config)) *divided {
	t.Helper()
	s := serve(t, nil, append([]func(*router.Config){func(c *router.Config) {
		c.Router.Mode = "score"
		for role, engines := range map[string][]*engine.Engine{"prefill": prefills, "decode": decodes} {
			for i, e := range engines {
				at := fmt.Sprintf("%s,id=%s-%d,role=%s", e.URL(), role, i, role)
				c.Router.Backends = append(c.Router.Backends, at)
			}
		}
	}}, tweak...)...)
	d := &divided{s, prefills, decodes, simulate(t, 1, func(c *engine.Config) { c.Speed = 20 })[0]}
	eventually(t, "every node is in service", func() bool {
		count := s.eligible() - len(decodes) // those that answer serve a model; the others need not
		for _, n := range s.nodes() {
			if n.Eligible {
				count++
			}
		}
		return count == len(prefills)+len(decodes)
	})
	return d
}

// longPrompt is a prompt of some 1,200 tokens. Prompts of different names have no common block.
func longPrompt(name string) string {
	return name + strings.Repeat(" says that a long prompt fills many blocks.", 110)
}

// handovers returns the counter of hand-overs with this result.
func (d *divided) handovers(result string) float64 {
	return d.metrics().sum("cgn_router_handovers_total", `result="`+result+`"`)
}

// lent sums up the prompts that prefill engines keep for others now.
func (d *divided) lent() (n int64) {
	for _, e := range d.prefills {
		n += e.Stats().LentRequests
	}
	return n
}

// everLent sums up the prompts that prefill engines have computed for others.
func (d *divided) everLent() (n int64) {
	for _, e := range d.prefills {
		n += e.Stats().Lent
	}
	return n
}

// alone returns the text that one engine answers a request with.
func (d *divided) alone(t *testing.T, body string) string {
	t.Helper()
	return answerIn(d.aside(t, body).body)
}

// aside returns the answer of an engine behind no router.
func (d *divided) aside(t *testing.T, body string) *reply {
	t.Helper()
	resp, err := d.client.Post(d.plain.URL()+chatPath, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r := read(resp)
	if r.err != nil || r.status != 200 {
		t.Fatal(r)
	}
	return r
}

// answerIn returns the text of an answer, streamed or not.
func answerIn(page []byte) (text string) {
	const field = `"content":"`
	for rest := string(page); ; {
		_, after, found := strings.Cut(rest, field)
		if !found {
			return text
		}
		piece, next, _ := strings.Cut(after, `"`)
		text, rest = text+piece, next
	}
}

func TestPromptIsHandedOver(t *testing.T) {
	t.Parallel()
	d := divide(t, 1, 2)
	for i, more := range []string{`,"max_tokens":8`, streaming,
		`,"stream":true,"max_tokens":20,"stop":["zzz"],"min_tokens":3`,
		`,"max_completion_tokens":9,"stream":true,"stream_options":{"include_usage":true}`} {
		body := chatBody(longPrompt(fmt.Sprint("request ", i)), more)
		r := d.chat(body)
		if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
			t.Errorf("%s: %v", more, r)
		}
		if p := r.header.Get("x-cgn-prefill-node"); p != "prefill-0" || !strings.HasPrefix(r.node(), "decode-") {
			t.Errorf("%s: prompt from %q, answer from %q", more, p, r.node())
		}
	}
	for _, e := range d.decodes {
		if s := e.Stats(); s.ComputedTokens != 0 {
			t.Errorf("a decode node computed %d prompt tokens", s.ComputedTokens)
		}
	}
	for _, name := range []string{"cgn_router_handover_seconds_count", "cgn_router_prefill_seconds_count"} {
		if n := d.metrics().sum(name); n != 4 {
			t.Errorf("%s is %v, want 4", name, n)
		}
	}
	if got := d.handovers("split"); got != 4 || d.lent() != 0 {
		t.Errorf("%v are split, %d are kept", got, d.lent())
	}
	d.chat(chatBody("short", streaming))
	d.chat(chatBody(longPrompt("two"), `,"n":2`))
	d.chat(chatBody(longPrompt("request 1"), streaming)) // cached on the node that answered it
	for result, want := range map[string]float64{"short": 1, "form": 1, "cached": 1, "split": 4} {
		if got := d.handovers(result); got != want {
			t.Errorf("%s: %v, want %v", result, got, want)
		}
	}
}

// TestNamedPrefillNode checks that a client can choose the node that computes the prompt.
func TestNamedPrefillNode(t *testing.T) {
	t.Parallel()
	d := divide(t, 2, 1)
	for i := range 4 {
		id := fmt.Sprint("prefill-", i%2)
		body := strings.Replace(chatBody("short", streaming), "{", `{"nvext":{"prefill_worker_id":"`+id+`"},`, 1)
		if r := d.chat(body); r.status != 200 || r.header.Get("x-cgn-prefill-node") != id {
			t.Errorf("%v from %q", r, r.header.Get("x-cgn-prefill-node"))
		}
	}
	r := d.chat(strings.Replace(chatBody("short", streaming), "{", `{"nvext":{"prefill_worker_id":"decode-0"},`, 1))
	if text := string(r.body); r.status != 404 || !strings.Contains(text, "computes no prompts for other nodes") ||
		!strings.Contains(text, `"nvext.prefill_worker_id"`) ||
		!strings.Contains(text, "these do: prefill-0, prefill-1") {
		t.Errorf("%v", r)
	}
}

func TestDisaggregationOff(t *testing.T) {
	t.Parallel()
	d := divide(t, 1, 1, func(c *router.Config) { c.Router.Disagg.Enabled = "false" })
	if r := d.chat(chatBody(longPrompt("a"), streaming)); r.status != 200 || r.header.Get("x-cgn-prefill-node") != "" {
		t.Errorf("%v", r)
	}
	if n := d.prefills[0].Stats().Lent; n != 0 {
		t.Errorf("%d prompts were computed for others", n)
	}
}

// mishap is a failure during a hand-over.
type mishap struct {
	nodes    [2]int                    // of each role; zero: 1 and 1
	prefill  *engine.Fault             // of the node that is picked to compute the prompt
	decode   *engine.Fault             // of the node that is picked to answer
	breaks   func(p, d *engine.Engine) // happens before the request; nil: nothing
	killed   bool                      // the node that has computed the prompt dies when D has the request
	result   string                    // of the hand-over that fails; "": none does
	split    float64                   // hand-overs that succeed
	computed int64                     // prompts that prefill nodes compute; -1: any number
	// either says that the outcome depends on whether D's connection was used before. Parameters
	// are then lost, because nobody knows whether D has read them.
	either bool
	mute   bool // the engine of P has no connector
	// late says that engines tell of blocks that they cannot read only after the head of their
	// answer, as vLLM does in a stream.
	late bool
}

// once is a fault of one request.
func once(f engine.Fault) *engine.Fault {
	f.Count = 1
	return &f
}

var zero = 0

var mishaps = map[string]mishap{
	"P refuses the request":    {prefill: once(engine.Fault{Status: 400}), result: "refused"},
	"P is overloaded":          {prefill: &engine.Fault{Status: 503}, result: "refused"},
	"P fails":                  {prefill: &engine.Fault{Status: 500}, result: "refused"},
	"P dies":                   {prefill: &engine.Fault{Reset: true}, result: "broken"},
	"P dies during its answer": {prefill: &engine.Fault{Truncate: true}, result: "broken", computed: -1},
	"P hangs":                  {prefill: &engine.Fault{Hang: true}, result: "broken"},
	"P speaks no HTTP":         {prefill: &engine.Fault{Garbage: true}, result: "broken"},
	"P refuses connections":    {breaks: func(p, _ *engine.Engine) { p.Refuse() }, result: "broken"},
	"another P takes over": {nodes: [2]int{2, 1}, prefill: &engine.Fault{Reset: true}, split: 1,
		computed: 1},
	"P dies after its answer": {decode: once(engine.Fault{Slow: engine.Duration(2 * time.Second)}),
		killed: true, result: "unread", computed: -1},
	"P dies after its answer, and D tells in its stream": {
		decode: once(engine.Fault{Slow: engine.Duration(2 * time.Second)}), killed: true, late: true, result: "unread",
		computed: -1},
	"D refuses connections": {nodes: [2]int{1, 2}, breaks: func(_, d *engine.Engine) { d.Refuse() }, split: 1,
		computed: 1},
	"D is out of slots":             {nodes: [2]int{1, 2}, decode: &engine.Fault{Status: 503}, split: 1, computed: 2},
	"D fails once":                  {decode: once(engine.Fault{Status: 500}), result: "unread", computed: 1},
	"D fails":                       {nodes: [2]int{1, 2}, decode: &engine.Fault{Status: 500}, result: "unread", computed: 1},
	"D dies":                        {nodes: [2]int{1, 2}, decode: &engine.Fault{Reset: true}, either: true},
	"D dies before its first token": {nodes: [2]int{1, 2}, decode: &engine.Fault{DieAfter: &zero}, either: true},
	"D is slower than the lease": {decode: once(engine.Fault{Slow: engine.Duration(1500 * time.Millisecond)}),
		result: "unread", computed: 1},
	"D is slower than the lease, and tells in its stream": {
		decode: once(engine.Fault{Slow: engine.Duration(1500 * time.Millisecond)}), late: true, result: "unread",
		computed: 1},
	"P has no connector": {mute: true, result: "garbled"},
	"both die": {nodes: [2]int{1, 2}, prefill: &engine.Fault{Reset: true}, decode: &engine.Fault{Reset: true},
		result: "broken"},
}

// killOnceRead kills p once decoder has a chat more, or never if stop is called before.
func killOnceRead(t *testing.T, p, decoder *engine.Engine) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	before := had(decoder, chatPath)
	var killer sync.WaitGroup
	killer.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for had(decoder, chatPath) == before {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		p.Kill()
	})
	return func() {
		cancel()
		killer.Wait()
	}
}

// TestMishapsOfHandovers checks that the client gets the whole right answer whatever fails, and
// that nothing is left of the request.
func TestMishapsOfHandovers(t *testing.T) {
	t.Parallel()
	for name, m := range mishaps {
		for _, more := range []string{`,"max_tokens":8`, streaming} {
			t.Run(name+more, func(t *testing.T) {
				t.Parallel()
				m.happens(t, more)
			})
		}
	}
}

func (m mishap) happens(t *testing.T, more string) {
	engines := simulate(t, max(m.nodes[0], 1)+max(m.nodes[1], 1), handing, func(c *engine.Config) {
		if m.late {
			c.LoadFailure = engine.LoadFailInStream
		}
		if m.mute && c.ID == "sim-0" {
			c.Connector = ""
		}
	})
	prefills := max(m.nodes[0], 1)
	d := divideAmong(t, engines[:prefills], engines[prefills:], func(c *router.Config) {
		c.Timeouts.FirstByte, c.Timeouts.FirstByteCold = config.Duration(4*time.Second), config.Duration(4*time.Second)
		c.Timeouts.PatienceFloor, c.Timeouts.StallFloor = config.Duration(4*time.Second), config.Duration(4*time.Second)
	})
	body := chatBody(longPrompt("the prompt"), more)
	p, decoder := d.picks(t, body)
	if p.SetFault(m.prefill); m.breaks != nil {
		m.breaks(p, decoder)
	}
	decoder.SetFault(m.decode)
	if m.killed {
		defer killOnceRead(t, p, decoder)()
	}
	r := d.chat(body)
	if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
		t.Errorf("%v", r)
	}
	p.SetFault(nil) // requests that hang end
	computed := d.everLent()
	if m.either {
		if m.split = d.handovers("split"); m.split == 0 {
			m.result = "unread"
		}
		m.computed = 1 + int64(m.split)
	}
	if got := d.handovers("split"); got != m.split || m.computed >= 0 && computed != m.computed {
		t.Errorf("%v hand-overs of %d prompts that were computed", got, computed)
	}
	if m.result != "" && d.handovers(m.result) != 1 {
		t.Errorf("not counted as %s:\n%s", m.result, d.metrics().lines("cgn_router_handovers_total"))
	}
	failed := min(len(m.result), 1)
	if n := d.log.count("hand-over of a prompt failed"); n != failed {
		t.Errorf("%d lines about a failure:\n%s", n, d.metrics().lines("cgn_router_handovers_total"))
	}
	d.idle()
	eventually(t, "no block is kept for others", func() bool { return d.lent() == 0 })
	for _, e := range slices.Concat(d.prefills, d.decodes) {
		if s := e.Stats(); s.WrongBlocks != 0 || s.Running+s.Waiting != 0 {
			t.Errorf("left: %+v", s)
		}
	}
}

// picks returns the nodes that would compute the prompt of body and answer it.
func (d *divided) picks(t *testing.T, body string) (p, decoder *engine.Engine) {
	t.Helper()
	e := d.explain(body)
	if e.Prefill == nil || e.Prefill.Pick == nil || e.Winner == "" {
		t.Fatalf("%+v", e)
	}
	named := func(role string, engines []*engine.Engine, id string) *engine.Engine {
		for i, e := range engines {
			if id == fmt.Sprint(role, "-", i) {
				return e
			}
		}
		t.Fatalf("no node %q", id)
		return nil
	}
	return named("prefill", d.prefills, e.Prefill.Pick.Winner), named("decode", d.decodes, e.Winner)
}

// TestHandoverThroughAgents checks that agents announce how their engines hand blocks over.
func TestHandoverThroughAgents(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	engines := simulate(t, 2, func(c *engine.Config) { c.Connector = "nixl" })
	for i, role := range []string{"prefill", "decode"} {
		c, err := agentConfig(role, engines[i].URL(), etcd)
		if err != nil {
			t.Fatal(err)
		}
		c.Agent.Role, c.Engine.Connector = role, "nixl"
		startAgent(t, c)
	}
	s := serve(t, nil, scored, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })
	eventually(t, "both nodes are in service", func() bool {
		nodes := s.nodes()
		return nodes["prefill"].Eligible && nodes["decode"].Eligible
	})
	r := s.chat(chatBody(longPrompt("a"), streaming), "x-cgn-deadline-ms", "60000")
	if r.status != 200 || r.node() != "decode" || r.header.Get("x-cgn-prefill-node") != "prefill" {
		t.Errorf("%v", r)
	}
	if n := engines[1].Stats().ComputedTokens; n != 0 {
		t.Errorf("%d prompt tokens were computed twice", n)
	}
}

// TestRepaymentThroughAgents checks that the blocks of TensorRT-LLM are freed after the client's
// own deadline, which an agent would apply too.
func TestRepaymentThroughAgents(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	var engines []*engine.Engine
	for _, role := range []string{"prefill", "decode"} {
		e := simulate(t, 1, func(c *engine.Config) {
			c.Connector, c.Role, c.BlockLease = engine.ConnectorTRTLLM, engine.Role(role), soon
		})[0]
		engines = append(engines, e)
		c, err := agentConfig(role, e.URL(), etcd)
		if err != nil {
			t.Fatal(err)
		}
		c.Agent.Role, c.Engine.Kind, c.Engine.Connector = role, "openai_compat", "trtllm"
		startAgent(t, c)
	}
	s := serve(t, nil, scored, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })
	eventually(t, "both nodes are in service", func() bool {
		nodes := s.nodes()
		return nodes["prefill"].Eligible && nodes["decode"].Eligible
	})
	engines[1].SetFault(&engine.Fault{Slow: engine.Duration(soon), Count: 1})
	if r := s.chat(chatBody(longPrompt("a"), streaming), "x-cgn-deadline-ms", "1000"); r.status != 504 {
		t.Errorf("%v", r)
	}
	s.idle()
	eventually(t, "a node has read the blocks", func() bool {
		return engines[0].Stats().LentRequests == 0 && engines[1].Stats().ReceivedTokens > 0
	})
	if p := engines[0].Stats(); p.ExpiredLeases != 0 {
		t.Errorf("prefill: %+v", p)
	}
}

// TestMissingRoleIsNamed checks that enabled = "true" says which part a model lacks, once.
func TestMissingRoleIsNamed(t *testing.T) {
	t.Parallel()
	always := func(c *router.Config) { c.Router.Disagg.Enabled = "true" }
	for what, engines := range map[string][2]int{"role prefill": {0, 2}, "": {1, 1}} {
		d := divide(t, engines[0], engines[1], always)
		const line = "every request of the model runs on one node"
		if what != "" {
			eventually(t, "the warning", func() bool { return d.log.count(line) > 0 })
		}
		if n := d.log.count(line); n != min(len(what), 1) || n > 0 && d.log.count("no node of "+what) != 1 {
			t.Errorf("%d lines: %s", n, d.log.text())
		}
	}
}

// TestNodesOfRoleBoth checks that two nodes of role both share a request only if expected times say
// so, and that such a node hands its prompts to a prefill node in any mode.
func TestNodesOfRoleBoth(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ role, result string }{
		"both":    {"both,connector=nixl", "unpaired"},
		"prefill": {"prefill", "split"},
	} {
		engines := simulate(t, 2, handing)
		s := serve(t, nil, scored, func(c2 *router.Config) {
			c2.Router.Backends = []string{engines[0].URL() + ",id=p,role=" + c.role,
				engines[1].URL() + ",id=d,role=both,connector=nixl"}
		})
		eventually(t, "both nodes are in service", func() bool {
			return s.nodes()["p"].Eligible && s.nodes()["d"].Eligible
		})
		if r := s.chat(chatBody(longPrompt(name), streaming)); r.status != 200 {
			t.Errorf("%v", r)
		}
		if n := s.metrics().sum("cgn_router_handovers_total", `result="`+c.result+`"`); n != 1 {
			t.Errorf("%s: not %s: %s", name, c.result, s.metrics().lines("cgn_router_handovers_total"))
		}
	}
}

// TestAnotherDecodeNode checks that a node that takes over for one that cannot be reached gets the
// parameters of the hand-over only if it has the same connector, and did not make them itself.
func TestAnotherDecodeNode(t *testing.T) {
	t.Parallel()
	for name, other := range map[string]string{"another connector": "mooncake", "P itself": ""} {
		engines := simulate(t, 3, handing, func(c *engine.Config) {
			if c.ID == "sim-2" && other != "" {
				c.Connector = engine.Connector(other)
			}
		})
		s := serve(t, nil, scored, func(c *router.Config) {
			c.Router.Backends = []string{engines[0].URL() + ",id=p,role=both,connector=nixl",
				engines[1].URL() + ",id=d,role=decode"}
			if other != "" {
				c.Router.Backends[0] = engines[0].URL() + ",id=p,role=prefill"
				c.Router.Backends = append(c.Router.Backends, engines[2].URL()+",id=e,role=decode,connector="+other)
			}
		})
		eventually(t, "the nodes are in service", func() bool {
			return s.nodes()["p"].Eligible && s.nodes()["d"].Eligible
		})
		engines[1].Refuse()
		for i := range 6 {
			r := s.chat(chatBody(longPrompt(fmt.Sprint(name, i)), streaming))
			p := r.header.Get("x-cgn-prefill-node")
			if r.status != 200 || r.err != nil || p == r.node() || p != "" && r.node() == "e" {
				t.Errorf("%s: %v, prompt from %q", name, r, p)
			}
		}
	}
}
