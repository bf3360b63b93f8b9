package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// wire is a connector, as the router and the simulated engines call it.
type wire struct {
	name     string
	by       engine.Connector
	together bool
	needy    bool // a node that answers cannot compute prompts
	meets    bool // at a bootstrap server
}

var wires = []wire{
	{name: "nixl", by: engine.ConnectorNIXL},
	{name: "mooncake", by: engine.ConnectorMooncake, together: true, meets: true},
	{name: "sglang", by: engine.ConnectorSGLang, together: true, needy: true, meets: true},
	{name: "trtllm", by: engine.ConnectorTRTLLM},
	{name: "trtllm-generation-first", by: engine.ConnectorTRTLLM, together: true},
}

// wireOf returns the wire with that name.
func wireOf(name string) wire {
	return wires[slices.IndexFunc(wires, func(w wire) bool { return w.name == name })]
}

// divide starts engines with the wire and a router in front of them. tweak changes an engine.
func (w wire) divide(t *testing.T, prefills, decodes int, tweak ...func(*engine.Config)) *divided {
	t.Helper()
	return w.divideWith(t, prefills, decodes, func(*router.Config) {}, tweak...)
}

// divideWith is divide with other settings of the router.
func (w wire) divideWith(
	t *testing.T, prefills, decodes int, set func(*router.Config), tweak ...func(*engine.Config),
) *divided {
	t.Helper()
	with := func(role engine.Role, n int) []*engine.Engine {
		return simulate(t, n, append([]func(*engine.Config){func(c *engine.Config) {
			c.ID, c.Connector, c.Role, c.BlockLease = string(role)+"-"+c.ID, w.by, role, 2*time.Second
		}}, tweak...)...)
	}
	first, second := with(engine.RolePrefill, prefills), with(engine.RoleDecode, decodes)
	return divideAmong(t, first, second, func(c *router.Config) {
		c.Timeouts.FirstByte, c.Timeouts.FirstByteCold = config.Duration(2*soon), config.Duration(2*soon)
		for i, at := range c.Router.Backends {
			at += ",connector=" + w.name
			for _, e := range first {
				if w.meets && strings.HasPrefix(at, e.URL()+",") {
					at += ",bootstrap=" + e.SideChannel()
				}
			}
			c.Router.Backends[i] = at
		}
		set(c)
	})
}

// known waits until the router knows the engines' model.
func (d *divided) known(t *testing.T) {
	t.Helper()
	eventually(t, "the model is known", func() bool { return d.chat(chatBody("hello", "")).status == 200 })
}

// clean checks that nothing is left of any request, and that no answer came from wrong blocks.
func (d *divided) clean(t *testing.T) {
	t.Helper()
	d.idle()
	for _, e := range slices.Concat(d.prefills, d.decodes) {
		eventually(t, "no engine has anything left", func() bool {
			s := e.Stats()
			return s.InFlight == 0 && s.LentRequests == 0 && s.Running+s.Waiting == 0
		})
		if s := e.Stats(); s.WrongBlocks != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// gotChat says whether the engine has got a chat.
func gotChat(e *engine.Engine) bool {
	return slices.ContainsFunc(e.Requests(), func(r engine.Request) bool { return r.Path == "/v1/chat/completions" })
}

// each calls f for all wires.
func each(t *testing.T, f func(t *testing.T, w wire)) {
	some(t, func(wire) bool { return true }, f)
}

// some is each for the wires that fits returns true for.
func some(t *testing.T, fits func(wire) bool, f func(t *testing.T, w wire)) {
	t.Parallel()
	for _, w := range wires {
		if !fits(w) {
			continue
		}
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			f(t, w)
		})
	}
}

func TestWires(t *testing.T) {
	each(t, func(t *testing.T, w wire) {
		d := w.divide(t, 2, 2)
		var all sync.WaitGroup
		for i, more := range []string{`,"max_tokens":8`, streaming,
			`,"stream":true,"max_completion_tokens":20,"stop":["zzz"],"min_tokens":3`,
			`,"max_tokens":9,"stream":true,"stream_options":{"include_usage":true}`} {
			all.Go(func() {
				body := chatBody(longPrompt(fmt.Sprint("request ", i)), more)
				r := d.chat(body)
				if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
					t.Errorf("%s: %v", more, r)
				}
				if p := r.header.Get("x-cgn-prefill-node"); !strings.HasPrefix(p, "prefill-") ||
					!strings.HasPrefix(r.node(), "decode-") || r.attempts() != "1" {
					t.Errorf("%s: prompt from %q: %v", more, p, r)
				}
			})
		}
		all.Wait()
		r := d.post("/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":5}`, longPrompt("text")))
		if r.status != 200 || r.header.Get("x-cgn-prefill-node") == "" {
			t.Error(r)
		}
		if n := d.handovers("split"); n != 5 {
			t.Errorf("%s", d.metrics().lines("cgn_router_handovers_total"))
		}
		for _, e := range d.prefills {
			if s := e.Stats(); s.ExpiredLeases+s.LoneLegs != 0 {
				t.Errorf("%+v", s)
			}
		}
		for _, e := range d.decodes {
			if s := e.Stats(); s.ComputedTokens != 0 {
				t.Errorf("a decode node computed %d prompt tokens", s.ComputedTokens)
			}
		}
		d.clean(t)
	})
}

// TestWiresWithRanks checks that both engines are told their ranks, and D that of P.
func TestWiresWithRanks(t *testing.T) {
	each(t, func(t *testing.T, w wire) {
		d := w.divide(t, 1, 1, ranked)
		d.ranks(4)
		for i := range 8 {
			body := chatBody(longPrompt(fmt.Sprint("prompt ", i)), `,"max_tokens":5`)
			if r := d.chat(body); r.status != 200 || r.header.Get("x-cgn-prefill-node") == "" ||
				answerIn(r.body) != d.alone(t, body) {
				t.Fatal(r)
			}
		}
		for _, e := range slices.Concat(d.prefills, d.decodes) {
			for rank, s := range e.RankStats() {
				if s.Completed == 0 {
					t.Errorf("rank %d of %s has done nothing", rank, e.Stats().ID)
				}
			}
		}
		if n := d.handovers("split"); n != 8 {
			t.Errorf("%s", d.metrics().lines("cgn_router_handovers_total"))
		}
		d.clean(t)
	})
}

// togetherMishap is a failure of one of two engines that are asked at once, or of both.
type togetherMishap struct {
	prefill, decode *engine.Fault
	breaks          func(p, d *engine.Engine)
	killed          bool   // P dies when D has the request
	result          string // of the hand-over that fails, or several: which one depends on the wire or on time
	innocent        string // the role that the failure must not be held against
	// status is that of a needy node's answer; 0: 200, since another partner takes over.
	status int
	// first is the time until the answer's first byte is due, if the mishap ends by it. peer is the
	// time for which an engine waits for the other one.
	first, peer time.Duration
}

var togetherMishaps = map[string]togetherMishap{
	"P refuses the request": {prefill: once(engine.Fault{Status: 400}), result: "refused", innocent: "decode", status: 400},
	"P is overloaded":       {prefill: once(engine.Fault{Status: 503}), result: "refused", innocent: "decode"},
	"P fails":               {prefill: once(engine.Fault{Status: 500}), result: "refused", innocent: "decode"},
	"P fails late": {prefill: once(engine.Fault{Status: 500, Slow: engine.Duration(200 * time.Millisecond)}),
		result: "refused", innocent: "decode"},
	"P dies":                   {prefill: &engine.Fault{Reset: true}, result: "broken", innocent: "decode"},
	"P dies during its answer": {prefill: once(engine.Fault{Truncate: true}), result: "broken", innocent: "decode"},
	"P hangs": {prefill: &engine.Fault{Hang: true}, result: "broken", innocent: "decode",
		first: 4 * time.Second},
	"P speaks no HTTP": {prefill: once(engine.Fault{Garbage: true}), result: "broken", innocent: "decode"},
	"P refuses connections": {breaks: func(p, _ *engine.Engine) { p.Refuse() }, result: "broken",
		innocent: "decode"},
	"P dies before D reads": {decode: once(engine.Fault{Slow: engine.Duration(time.Second)}), killed: true,
		result: "broken unread", innocent: "decode"},
	"D fails once":                  {decode: once(engine.Fault{Status: 500}), result: "unread", innocent: "prefill"},
	"D fails":                       {decode: &engine.Fault{Status: 500}, result: "unread", innocent: "prefill"},
	"D is out of slots":             {decode: &engine.Fault{Status: 503}, innocent: "prefill"},
	"D dies":                        {decode: &engine.Fault{Reset: true}, innocent: "prefill"},
	"D dies before its first token": {decode: &engine.Fault{DieAfter: &zero}, innocent: "prefill"},
	"D refuses connections": {breaks: func(_, d *engine.Engine) { d.Refuse() },
		innocent: "prefill"},
	// P has answered, or waits for D in vain.
	"D is slower than the lease": {decode: once(engine.Fault{Slow: engine.Duration(2500 * time.Millisecond)}),
		result: "refused unread", peer: time.Second},
	"both die": {prefill: &engine.Fault{Reset: true}, decode: &engine.Fault{Reset: true}},
}

// TestOneOfTwoFails checks that the client gets the right answer whichever engine fails, that the
// other one does not wait for it, and that only one of them is blamed.
func TestOneOfTwoFails(t *testing.T) {
	t.Parallel()
	for _, w := range wires {
		if !w.together {
			continue
		}
		for name := range togetherMishaps {
			for _, more := range []string{`,"max_tokens":8`, streaming} {
				t.Run(w.name+" "+name+more, func(t *testing.T) {
					t.Parallel()
					w.suffers(t, togetherMishaps[name], more)
				})
			}
		}
	}
}

func (w wire) suffers(t *testing.T, m togetherMishap, more string) {
	d := w.divideWith(t, 2, 2, func(c *router.Config) {
		if m.first > 0 {
			c.Timeouts.FirstByte, c.Timeouts.FirstByteCold = config.Duration(m.first), config.Duration(m.first)
			c.Timeouts.PatienceFloor, c.Timeouts.StallFloor = config.Duration(m.first), config.Duration(m.first)
		}
	}, func(c *engine.Config) { c.PeerTimeout = m.peer })
	body := chatBody(longPrompt("the prompt"), more)
	d.known(t)
	p, decoder := d.picks(t, body)
	if m.breaks != nil {
		m.breaks(p, decoder)
	}
	own := func(f *engine.Fault) *engine.Fault {
		if f == nil {
			return nil
		}
		own := *f
		return &own
	}
	p.SetFault(own(m.prefill))
	decoder.SetFault(own(m.decode))
	if m.killed {
		defer killOnceRead(t, p, decoder)()
	}
	r := d.chat(body)
	if want := m.status; want != 0 && w.needy {
		if r.status != want {
			t.Errorf("%v", r)
		}
	} else if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
		t.Errorf("%v", r)
	}
	failed := 0.0
	for result := range strings.FieldsSeq(m.result) {
		failed += d.handovers(result)
	}
	if m.result != "" && failed != 1 && !(w.needy && failed > 1) {
		t.Errorf("%v counted as %s:\n%s", failed, m.result, d.metrics().lines("cgn_router_handovers_total"))
	}
	for id := range d.nodes() {
		n := d.metrics().sum("cgn_router_upstream_errors_total", `node="`+id+`"`)
		if n != 0 && m.innocent != "" && strings.HasPrefix(id, m.innocent) {
			t.Errorf("%s is blamed:\n%s", id, d.metrics().lines("cgn_router_upstream_errors_total"))
		}
	}
	p.SetFault(nil)
	decoder.SetFault(nil)
	d.clean(t)
}

// TestDecodeNodeDiesMidStream checks the stream of a request that was handed over, if D dies after
// the first byte. Another D goes on with it, if it has the ids. Nothing is left of the first one.
func TestDecodeNodeDiesMidStream(t *testing.T) {
	each(t, func(t *testing.T, w wire) {
		for _, mode := range []string{"auto", "off"} {
			d := w.divideWith(t, 2, 2, func(c *router.Config) { c.Router.Resume.Mode = mode })
			d.known(t)
			body := chatBody(longPrompt(mode), `,"stream":true,"max_tokens":20,"stream_options":{"include_usage":true}`)
			_, decoder := d.picks(t, body)
			split, lent := d.handovers("split"), d.everLent()
			decoder.SetFault(&engine.Fault{DieAfter: new(5)})
			r := d.chat(body)
			got, want := saidBy(t, r), saidBy(t, d.aside(t, body))
			if p := r.header.Get("x-cgn-prefill-node"); p == "" || r.node() != d.idOf(decoder) || r.attempts() != "1" {
				t.Errorf("prompt from %q: %v", p, r)
			}
			if vllm := w.by == engine.ConnectorNIXL || w.by == engine.ConnectorMooncake; vllm && mode == "auto" {
				if !got.same(want) || d.resumed("ids", "complete") != 1 {
					t.Errorf("%+v\n%+v\n%s", got, want, r.body)
				}
			} else if got.err != "the backend failed before the stream was complete" || got.dones != 0 ||
				got.text != want.text[:20] {
				t.Errorf("%+v\n%s", got, r.body)
			}
			if d.handovers("split") != split+1 || d.everLent() != lent+1 {
				t.Errorf("%d prompts were computed:\n%s", d.everLent(), d.metrics().lines("cgn_router_handovers_total"))
			}
			decoder.SetFault(nil)
			d.clean(t)
		}
	})
}

// TestNobodyWantsTheBlocks checks that some node reads the blocks of TensorRT-LLM when the client
// leaves before its node answers.
func TestNobodyWantsTheBlocks(t *testing.T) {
	t.Parallel()
	w := wireOf("trtllm")
	d := w.divide(t, 1, 1, func(c *engine.Config) { c.BlockLease = soon })
	d.decodes[0].SetFault(&engine.Fault{Slow: engine.Duration(soon), Count: 1})
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		if resp, err := d.send(ctx, http.MethodPost, "/v1/chat/completions",
			chatBody(longPrompt("x"), `,"stream":true,"max_completion_tokens":500`)); err == nil {
			resp.Body.Close()
		}
	})
	eventually(t, "the node that answers has the request", func() bool { return gotChat(d.decodes[0]) })
	if n := d.lent(); n != 1 {
		t.Errorf("%d prompts are kept", n)
	}
	leave()
	all.Wait()
	d.clean(t)
	s := d.decodes[0].Stats()
	if s.ReceivedTokens == 0 || s.GeneratedTokens > 2 {
		t.Errorf("%+v", s)
	}
}

// TestRouterStopsAndTheBlocksAreFreed checks that the router waits for the node that reads them.
func TestRouterStopsAndTheBlocksAreFreed(t *testing.T) {
	t.Parallel()
	w := wireOf("trtllm")
	d := w.divide(t, 1, 1, func(c *engine.Config) { c.BlockLease = soon })
	d.decodes[0].SetFault(&engine.Fault{Slow: engine.Duration(200 * time.Millisecond)})
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		resp, err := d.send(ctx, http.MethodPost, "/v1/chat/completions", chatBody(longPrompt("x"), streaming))
		if err == nil {
			resp.Body.Close()
		}
	})
	eventually(t, "the node that answers has the request", func() bool { return gotChat(d.decodes[0]) })
	leave()
	all.Wait()
	d.idle()
	if err := d.stop(); err != nil {
		t.Error(err)
	}
	if n := d.lent(); n != 0 {
		t.Errorf("%d prompts are kept", n)
	}
}

// TestAnswerEndsWithItsFirstToken checks an answer of TensorRT-LLM that P has completed.
func TestAnswerEndsWithItsFirstToken(t *testing.T) {
	t.Parallel()
	w := wireOf("trtllm")
	d := w.divide(t, 1, 1)
	for _, more := range []string{`,"max_tokens":8`, streaming} {
		body := chatBody(longPrompt("x"+more), more)
		token := d.alone(t, body)[:4]
		body = chatBody(longPrompt("x"+more), fmt.Sprintf(`%s,"stop":%q`, more, token))
		r := d.chat(body)
		if r.status != 200 || answerIn(r.body) != "" || !strings.Contains(string(r.body), `"finish_reason":"stop"`) {
			t.Error(r)
		}
	}
	if n := d.handovers("over"); n != 2 || d.log.count("hand-over of a prompt failed") != 0 {
		t.Errorf("%s", d.metrics().lines("cgn_router_handovers_total"))
	}
	d.clean(t)
}

// TestBatchesOfSGLang checks requests of several sequences, each of which has a room.
func TestBatchesOfSGLang(t *testing.T) {
	t.Parallel()
	d := wireOf("sglang").divide(t, 1, 1, ranked)
	d.ranks(4)
	texts := []string{longPrompt("one"), longPrompt("two"), longPrompt("three")}
	prompts, err := json.Marshal(texts)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path, body string
		rooms      int
	}{
		{"/v1/chat/completions", chatBody(texts[0], `,"n":3,"max_tokens":4`), 3},
		{"/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":%s,"max_tokens":4,"stream":true}`, prompts), 3},
		{"/v1/completions", fmt.Sprintf(`{"model":"sim","prompt":%s,"n":2,"max_tokens":4}`, prompts), 6},
		{"/v1/completions", `{"model":"sim","prompt":[[1,2,3],[4,5,6]],"max_tokens":4}`, 2},
	} {
		r := d.post(tc.path, tc.body)
		if r.status != 200 || r.err != nil || r.header.Get("x-cgn-prefill-node") == "" {
			t.Errorf("%.60s: %v", tc.body, r)
		}
		for _, e := range []*engine.Engine{d.prefills[0], d.decodes[0]} {
			var doc struct {
				Room []uint64 `json:"bootstrap_room"`
				Host []string `json:"bootstrap_host"`
				Port []int    `json:"bootstrap_port"`
				Own  *int     `json:"routed_dp_rank"`
				P    *int     `json:"disagg_prefill_dp_rank"`
			}
			if err := json.Unmarshal(lastTo(t, e, tc.path).Body, &doc); err != nil {
				t.Fatal(err)
			}
			rank := doc.P
			if e == d.prefills[0] {
				rank = doc.Own
			}
			if len(doc.Room) != tc.rooms || len(doc.Host) != tc.rooms || len(doc.Port) != tc.rooms ||
				doc.Own == nil || rank == nil {
				t.Fatalf("%+v", doc)
			}
			for i, room := range doc.Room {
				if int(room%2) != *rank || slices.Index(doc.Room, room) != i {
					t.Errorf("rooms %v for rank %d", doc.Room, *rank)
				}
			}
		}
	}
	d.clean(t)
}

// TestNeedyNodes checks requests that other connectors do not split, and those without a partner.
func TestNeedyNodes(t *testing.T) {
	t.Parallel()
	d := wireOf("sglang").divide(t, 1, 1)
	for _, body := range []string{chatBody("short", `,"max_tokens":4`), chatBody("short", streaming),
		chatBody(longPrompt("again"), streaming), chatBody(longPrompt("again"), streaming),
		chatBody("echo", `,"echo":true,"max_tokens":3`)} {
		if r := d.chat(body); r.status != 200 || r.header.Get("x-cgn-prefill-node") == "" {
			t.Errorf("%.60s: %v", body, r)
		}
	}
	d.prefills[0].SetFault(&engine.Fault{Status: 400})
	if r := d.chat(chatBody("bad", "")); r.status != 400 || !strings.Contains(string(r.body), "prefill_refused") {
		t.Error(r)
	}
	d.prefills[0].SetFault(&engine.Fault{Status: 500})
	if r := d.chat(chatBody("bad", "")); r.status != 503 || !strings.Contains(string(r.body), "no_prefill_node") {
		t.Error(r)
	}
	d.prefills[0].Refuse()
	eventually(t, "the node is out of service", func() bool { return !d.nodes()["prefill-0"].Eligible })
	for _, more := range []string{"", streaming} {
		r := d.chat(chatBody("lonely", more))
		if r.status != 503 || !strings.Contains(string(r.body), "no_prefill_node") {
			t.Error(r)
		}
	}
	if s := d.decodes[0].Stats(); s.Faults != 0 {
		t.Errorf("%+v", s)
	}
	d.clean(t)
}

// TestWiresWithoutStreamOptions checks engines that answer and refuse stream_options. Such an
// engine is asked again without, and once only.
func TestWiresWithoutStreamOptions(t *testing.T) {
	each(t, func(t *testing.T, w wire) {
		d := w.divide(t, 2, 1, func(c *engine.Config) { c.RejectStreamOptions = c.Role == engine.RoleDecode })
		for i, result := range []string{"unread", "split"} {
			body := chatBody(longPrompt(fmt.Sprint("prompt ", i)), streaming)
			r := d.chat(body)
			if r.status != 200 || r.err != nil || answerIn(r.body) != d.alone(t, body) {
				t.Errorf("%v", r)
			}
			if p := r.header.Get("x-cgn-prefill-node"); (p == "") != (i == 0 && !w.needy) {
				t.Errorf("prompt from %q", p)
			}
			if d.handovers(result) == 0 {
				t.Errorf("not %s: %s", result, d.metrics().lines("cgn_router_handovers_total"))
			}
		}
		if n := d.metrics().sum("cgn_router_stream_options_rejected_total"); n != 1 {
			t.Errorf("%v refusals", n)
		}
		if n := d.metrics().sum("cgn_router_upstream_errors_total"); n != 0 {
			t.Errorf("blamed:\n%s", d.metrics().lines("cgn_router_upstream_errors_total"))
		}
		d.clean(t)
		for _, e := range d.prefills {
			if s := e.Stats(); w.by == engine.ConnectorTRTLLM && s.ExpiredLeases != 0 {
				t.Errorf("nobody read the blocks: %+v", s)
			}
		}
	})
}

// TestSeveralAnswersStayTogether checks that wires of one sequence do not carry several.
func TestSeveralAnswersStayTogether(t *testing.T) {
	some(t, func(w wire) bool { return !w.needy }, func(t *testing.T, w wire) {
		d := w.divide(t, 1, 1)
		two, err := json.Marshal([]string{longPrompt("one"), longPrompt("two")})
		if err != nil {
			t.Fatal(err)
		}
		for _, body := range []string{
			fmt.Sprintf(`{"model":"sim","prompt":%s,"max_tokens":4}`, two),
			fmt.Sprintf(`{"model":"sim","prompt":%q,"n":2,"max_tokens":4}`, longPrompt("n")),
		} {
			if r := d.post("/v1/completions", body); r.status != 200 || r.header.Get("x-cgn-prefill-node") != "" {
				t.Error(r)
			}
		}
		if n := d.handovers("form"); n != 2 {
			t.Errorf("%s", d.metrics().lines("cgn_router_handovers_total"))
		}
	})
}

// TestFactsOfPrefillNodes checks that a node's server is asked once, and again after the engine has
// started anew under the same address.
func TestFactsOfPrefillNodes(t *testing.T) {
	t.Parallel()
	d := wireOf("mooncake").divide(t, 1, 1)
	for _, r := range together(8, func(i int) *reply {
		return d.chat(chatBody(longPrompt(fmt.Sprint("request ", i)), streaming))
	}) {
		if r.status != 200 || r.header.Get("x-cgn-prefill-node") == "" {
			t.Error(r)
		}
	}
	d.prefills[0].Kill()
	if err := d.prefills[0].Accept(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the node is back", func() bool { return d.nodes()["prefill-0"].Eligible })
	body := chatBody(longPrompt("after the restart"), streaming)
	for i := range 3 {
		if r := d.chat(body); r.status != 200 || answerIn(r.body) != d.alone(t, body) {
			t.Error(r)
		} else if p := r.header.Get("x-cgn-prefill-node"); (p != "") != (i > 0) {
			t.Errorf("request %d: prompt from %q", i, p)
		}
		body = chatBody(longPrompt(fmt.Sprint("more ", i)), streaming)
	}
	d.prefills[0].Refuse()
	d.idle()
}

// TestOtherConnectorsAreNoPartners checks that a prompt goes to no node with another connector.
func TestOtherConnectorsAreNoPartners(t *testing.T) {
	t.Parallel()
	p := simulate(t, 1, func(c *engine.Config) { c.Connector = engine.ConnectorMooncake })[0]
	e := simulate(t, 1, func(c *engine.Config) { c.Connector = engine.ConnectorNIXL })[0]
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Mode = "score"
		c.Router.Backends = []string{
			p.URL() + ",id=prefill-0,role=prefill,connector=mooncake,bootstrap=" + p.SideChannel(),
			e.URL() + ",id=decode-0,role=decode,connector=nixl",
		}
	})
	d := &divided{site: s}
	eventually(t, "both are in service", func() bool {
		return d.nodes()["prefill-0"].Eligible && d.nodes()["decode-0"].Eligible
	})
	if r := d.chat(chatBody(longPrompt("x"), streaming)); r.status != 200 || r.header.Get("x-cgn-prefill-node") != "" {
		t.Error(r)
	}
	if n := d.handovers("unpaired"); n != 1 || p.Stats().Lent != 0 {
		t.Errorf("%s", d.metrics().lines("cgn_router_handovers_total"))
	}
}
