package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// legs starts an engine for each leg.
func legs(t *testing.T, by Connector, change ...func(*Config)) (p, d *Engine) {
	t.Helper()
	with := func(role Role) *Engine {
		return start(t, append([]func(*Config){func(c *Config) {
			c.Connector, c.Role, c.ID, c.PeerTimeout = by, role, string(role), soon
		}}, change...)...)
	}
	return with(RolePrefill), with(RoleDecode)
}

// alone returns what an engine without a connector says to a prompt.
func alone(t *testing.T, text string) string {
	t.Helper()
	return said(t, chatted(t, start(t), chatBody(text, `,"max_tokens":9`), 200))
}

// both sends the legs together, or the second one once it runs if that is asked for.
func both(t *testing.T, p, d *Engine, prefill, decode string, decodeFirst bool) (first, second *http.Response) {
	t.Helper()
	var all sync.WaitGroup
	all.Go(func() { second = post(t, d, "/v1/chat/completions", decode) })
	if decodeFirst {
		eventually(t, "the decode leg waits", func() bool { return d.Stats().InFlight == 1 })
	}
	first = post(t, p, "/v1/chat/completions", prefill)
	all.Wait()
	return first, second
}

// checkLegs checks that only the first engine computed the prompt, and that it keeps nothing.
func checkLegs(t *testing.T, p, d *Engine) {
	t.Helper()
	eventually(t, "the blocks are free", func() bool {
		s := p.Stats()
		return s.LentRequests == 0 && s.UsedBlocks == 0
	})
	ps, ds := p.Stats(), d.Stats()
	if ps.Lent == 0 || ps.ComputedTokens == 0 || ps.LoneLegs != 0 {
		t.Errorf("prefill %+v", ps)
	}
	if ds.ComputedTokens != 0 || ds.ReceivedTokens != ps.PromptTokens || ds.WrongBlocks+ds.LostBlocks != 0 {
		t.Errorf("decode %+v", ds)
	}
}

// mooncakeLegs returns the bodies of both legs, as a router makes them.
func mooncakeLegs(t *testing.T, p *Engine, text, transfer string) (prefill, decode string) {
	t.Helper()
	res, err := http.Get("http://" + p.SideChannel() + "/query")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	id := at(t, decoded(t, string(body)), "0", "engine_id").(string)
	return chatBody(text, fmt.Sprintf(`,"max_tokens":1,"kv_transfer_params":{"do_remote_decode":true,`+
			`"do_remote_prefill":false,"transfer_id":%q}`, transfer)),
		chatBody(text, fmt.Sprintf(`,"max_tokens":9,"kv_transfer_params":{"do_remote_decode":false,`+
			`"do_remote_prefill":true,"transfer_id":%q,"remote_engine_id":%q,"remote_bootstrap_addr":"http://%s"}`,
			transfer, id, p.SideChannel()))
}

func TestMooncake(t *testing.T) {
	const text = "tell me of the sea, and of the sky"
	want := alone(t, text)
	for _, decodeFirst := range []bool{false, true} {
		p, d := legs(t, ConnectorMooncake)
		prefill, decode := mooncakeLegs(t, p, text, "xfer-1")
		first, second := both(t, p, d, prefill, decode, decodeFirst)
		if doc := object(t, first, 200); doc["kv_transfer_params"] != nil {
			t.Errorf("the prefill answers %v", doc["kv_transfer_params"])
		}
		doc := object(t, second, 200)
		if got := said(t, doc); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
		// vLLM counts what came from elsewhere as cached.
		u := at(t, doc, "usage").(map[string]any)
		if at(t, u, "prompt_tokens_details", "cached_tokens") != u["prompt_tokens"] {
			t.Errorf("usage %v", u)
		}
		checkLegs(t, p, d)
	}
}

// TestMooncakeFails: a leg at the wrong engine, and an address that is no URL.
func TestMooncakeFails(t *testing.T) {
	p, d := legs(t, ConnectorMooncake)
	prefill, decode := mooncakeLegs(t, p, "hello", "x")
	chatted(t, d, prefill, 500)
	chatted(t, p, decode, 500)
	chatted(t, d, strings.Replace(decode, "http://", "", 1), 500)
	p.Kill()
	chatted(t, d, decode, 500)
	if s := d.Stats(); s.LostBlocks != 2 {
		t.Errorf("%+v", s)
	}
}

func sglangBody(p *Engine, text, more string) string {
	host, port, _ := strings.Cut(p.SideChannel(), ":")
	return chatBody(text, fmt.Sprintf(`,"bootstrap_host":%q,"bootstrap_port":%s%s`, host, port, more))
}

func TestSGLangLegs(t *testing.T) {
	const text = "tell me of the sea, and of the sky"
	want := alone(t, text)
	for _, decodeFirst := range []bool{false, true} {
		p, d := legs(t, ConnectorSGLang)
		body := sglangBody(p, text, `,"max_tokens":9,"bootstrap_room":9223372036854775807`)
		first, second := both(t, p, d, body, body, decodeFirst)
		doc := object(t, first, 200)
		if n := at(t, doc, "usage", "completion_tokens"); n != 1.0 ||
			at(t, doc, "choices", 0, "finish_reason") != "length" || !strings.HasPrefix(want, said(t, doc)) {
			t.Errorf("the prefill answers %v", doc)
		}
		if got := said(t, object(t, second, 200)); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
		checkLegs(t, p, d)
		// Both engines want a room, and answer in SGLang's form.
		for _, e := range []*Engine{p, d} {
			doc := chatted(t, e, chatBody("x", ""), 400)
			if m, _ := doc["message"].(string); doc["object"] != "error" || !strings.Contains(m, "bootstrap room id") {
				t.Errorf("%v", doc)
			}
		}
	}
}

// TestSGLangBatch: each sequence of a batch has a room of its own, from a list or counted from one.
func TestSGLangBatch(t *testing.T) {
	for _, rooms := range []string{`[40,20]`, `7`} {
		p, d := legs(t, ConnectorSGLang)
		host, port, _ := strings.Cut(p.SideChannel(), ":")
		const plain = `{"prompt":["one prompt here","another prompt"],"max_tokens":5`
		body := fmt.Sprintf(plain+`,"bootstrap_room":%s,"bootstrap_host":[%q,%q],"bootstrap_port":[%s,%s]}`,
			rooms, host, host, port, port)
		var second *http.Response
		var all sync.WaitGroup
		all.Go(func() { second = post(t, d, "/v1/completions", body) })
		object(t, post(t, p, "/v1/completions", body), 200)
		all.Wait()
		got := object(t, second, 200)
		want := object(t, post(t, start(t), "/v1/completions", plain+`}`), 200)
		for i := range 2 {
			if a, b := at(t, got, "choices", i, "text"), at(t, want, "choices", i, "text"); a != b {
				t.Errorf("rooms %s: choice %d is %q, want %q", rooms, i, a, b)
			}
		}
		checkLegs(t, p, d)
	}
}

// TestSGLangRanks: the decode leg looks for the room at the rank that it is told, else at the one
// that follows from the room.
func TestSGLangRanks(t *testing.T) {
	for _, tc := range []struct {
		room            int
		prefill, decode string
		meet            bool
	}{
		{room: 5, meet: true},
		{room: 6, meet: true},
		{room: 5, prefill: `,"routed_dp_rank":1`, meet: true},
		{room: 5, prefill: `,"routed_dp_rank":0`, decode: `,"routed_dp_rank":1,"disagg_prefill_dp_rank":0`, meet: true},
		{room: 5, prefill: `,"routed_dp_rank":0`},
		{room: 5, decode: `,"disagg_prefill_dp_rank":0`},
	} {
		p, d := legs(t, ConnectorSGLang, func(c *Config) {
			c.DataParallel = 2
			if !tc.meet {
				c.PeerTimeout = 20 * time.Millisecond
			}
		})
		room := fmt.Sprintf(`,"max_tokens":9,"bootstrap_room":%d`, tc.room)
		prefill, decode := sglangBody(p, "hello", room+tc.prefill), sglangBody(p, "hello", room+tc.decode)
		first, second := both(t, p, d, prefill, decode, false)
		if status := 500; tc.meet {
			object(t, first, 200)
			object(t, second, 200)
			checkLegs(t, p, d)
		} else {
			object(t, first, status)
			object(t, second, status)
			if p.Stats().LoneLegs != 1 || d.Stats().LostBlocks != 1 {
				t.Errorf("%+v: %+v, %+v", tc, p.Stats(), d.Stats())
			}
		}
		if rank := 1; tc.decode != "" && strings.Contains(tc.decode, "routed_dp_rank\":1") &&
			d.RankStats()[rank].GeneratedTokens != 9 {
			t.Errorf("%+v: the decode leg is at another rank: %+v", tc, d.RankStats())
		}
	}
	_, d := legs(t, ConnectorSGLang)
	chatted(t, d, sglangBody(d, "x", `,"bootstrap_room":1,"routed_dp_rank":1`), 400)
}

// TestLoneLegs: a leg whose other leg never comes fails after PeerTimeout. A leg whose client
// leaves waits no longer.
func TestLoneLegs(t *testing.T) {
	p, d := legs(t, ConnectorSGLang, func(c *Config) { c.PeerTimeout = 10 * time.Millisecond })
	body := sglangBody(p, "hello", `,"bootstrap_room":1`)
	chatted(t, p, body, 500)
	chatted(t, d, body, 500)
	if p.Stats().LoneLegs != 1 || d.Stats().LostBlocks != 1 {
		t.Errorf("%+v, %+v", p.Stats(), d.Stats())
	}
	p, d = legs(t, ConnectorSGLang)
	body = sglangBody(p, "hello", `,"bootstrap_room":1`)
	for _, e := range []*Engine{p, d} {
		ctx, leave := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.URL()+"/v1/chat/completions",
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		var left sync.WaitGroup
		left.Go(func() {
			if res, err := http.DefaultClient.Do(r); err == nil {
				_ = res.Body.Close()
				t.Error("a lone leg was answered")
			}
		})
		eventually(t, "the leg waits", func() bool { return e.Stats().InFlight == 1 })
		leave()
		left.Wait()
		eventually(t, "the leg is over", func() bool { s := e.Stats(); return s.InFlight == 0 && s.Aborted == 1 })
	}
	eventually(t, "no desk is left", func() bool {
		l := p.core().lender
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.desks) == 0
	})
	// The engines still work.
	first, second := both(t, p, d, body, body, true)
	object(t, first, 200)
	object(t, second, 200)
	// A dead prefill engine fails the waiting leg at once.
	var all sync.WaitGroup
	var res *http.Response
	all.Go(func() { res = post(t, d, "/v1/chat/completions", body) })
	eventually(t, "the decode leg waits", func() bool {
		l := p.core().lender
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.desks) == 1
	})
	p.Kill()
	all.Wait()
	object(t, res, 500)
}

const contextParams = `"disaggregated_params":{"request_type":"context_only","disagg_request_id":4611686018427387904,` +
	`"schedule_style":%d}`

// generationParams makes the decode leg of a context leg's answer, as TensorRT-LLM's proxy does.
func generationParams(t *testing.T, doc map[string]any, raw string) string {
	t.Helper()
	_, params, found := strings.Cut(raw, `"disaggregated_params":`)
	if !found {
		t.Fatalf("no disaggregated_params in %s", raw)
	}
	params = params[:strings.Index(params, "}")+1]
	params = strings.Replace(params, "context_only", "generation_only", 1)
	params = strings.Replace(params, `"ctx_usage":null`, `"ctx_usage":`+jsonOf(t, doc["usage"]), 1)
	return `"disaggregated_params":` + params + `,"prompt_token_ids":` + jsonOf(t, doc["prompt_token_ids"])
}

func TestTensorRTContextFirst(t *testing.T) {
	const text = "tell me of the sea, and of the sky"
	want := alone(t, text)
	p, d := legs(t, ConnectorTRTLLM)
	for _, cached := range []float64{0, 16} {
		context := fmt.Sprintf(contextParams, 0)
		raw := body(t, post(t, p, "/v1/chat/completions", chatBody(text, `,"max_tokens":9,`+context)))
		doc := decoded(t, raw)
		params := at(t, doc, "choices", 0, "disaggregated_params").(map[string]any)
		if r := at(t, doc, "choices", 0, "finish_reason"); r != "not_finished" ||
			len(params["first_gen_tokens"].([]any)) != 1 {
			t.Errorf("reason %v, %v", r, params)
		}
		for _, id := range []string{"ctx_request_id", "disagg_request_id"} {
			if !strings.Contains(raw, fmt.Sprintf(`"%s":4611686018427387904`, id)) {
				t.Errorf("%s in %s", id, raw)
			}
		}
		if n := at(t, doc, "usage", "completion_tokens"); n != 1.0 {
			t.Errorf("%v tokens", n)
		}
		decode := generationParams(t, doc, raw)
		if cached > 0 { // the state alone says where the blocks are, too
			decode = strings.Replace(decode, `"ctx_info_endpoint":"`, `"ctx_info_endpoint":null,"x":"`, 1)
		}
		second := chatted(t, d, chatBody("ignored", `,"max_tokens":9,`+decode), 200)
		if got := said(t, second); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
		if n := at(t, second, "usage", "prompt_tokens_details", "cached_tokens"); n != cached {
			t.Errorf("%v cached tokens, want those of the context leg, %v", n, cached)
		}
		again := chatted(t, d, chatBody("x", `,"max_tokens":9,`+generationParams(t, doc, raw)), 500)
		if again["object"] != "error" || again["code"] != 500.0 {
			t.Errorf("%v", again)
		}
	}
}

// TestTensorRTEnds: an answer that ends with its first token is the answer.
func TestTensorRTEnds(t *testing.T) {
	p, _ := legs(t, ConnectorTRTLLM)
	first := alone(t, "hello")[:4]
	for more, want := range map[string]string{
		`"max_tokens":1`: "length", `"max_tokens":5`: "not_finished", `"max_tokens":5,"stop":` + quote(first): "stop",
		`"n":1`: "not_finished",
	} {
		doc := chatted(t, p, chatBody("hello", ","+more+","+fmt.Sprintf(contextParams, 0)), 200)
		if r := at(t, doc, "choices", 0, "finish_reason"); r != want {
			t.Errorf("%s: %v, want %s", more, r, want)
		}
	}
}

func TestTensorRTGenerationFirst(t *testing.T) {
	const text = "tell me of the sea, and of the sky"
	p, d := legs(t, ConnectorTRTLLM)
	info := decoded(t, get(t, p, "/server_info"))
	endpoint := at(t, info, "disaggregated_params", "ctx_info_endpoint", 0).(string)
	decode := chatBody(text, fmt.Sprintf(`,"max_tokens":9,"disaggregated_params":{"request_type":"generation_only",`+
		`"ctx_request_id":7,"disagg_request_id":7,"schedule_style":1,"ctx_info_endpoint":%q,"ctx_dp_rank":0}`,
		endpoint))
	prefill := chatBody(text, `,"max_tokens":9,"disaggregated_params":{"request_type":"context_only",`+
		`"disagg_request_id":7,"schedule_style":1}`)
	first, second := both(t, p, d, prefill, decode, true)
	object(t, first, 200)
	if got, want := said(t, object(t, second, 200)), alone(t, text); got != want {
		t.Errorf("answer %q, want %q", got, want)
	}
	checkLegs(t, p, d)
	lone, _ := legs(t, ConnectorTRTLLM, func(c *Config) { c.PeerTimeout = time.Millisecond })
	chatted(t, lone, prefill, 500) // waits for a generation leg that never comes
}

func TestTensorRTRefuses(t *testing.T) {
	p, _ := legs(t, ConnectorTRTLLM)
	for _, more := range []string{`"kv_transfer_params":{}`, `"return_token_ids":true`, `"bootstrap_room":1`,
		`"disaggregated_params":{"request_type":"x"}`, `"disaggregated_params":{"request_type":"generation_only"}`,
		`"n":2,"disaggregated_params":{"request_type":"context_only"}`} {
		chatted(t, p, chatBody("x", ","+more), 400)
	}
	object(t, post(t, p, "/v1/completions", `{"prompt":"x","kv_transfer_params":{}}`), 400)
	text := object(t, post(t, p, "/v1/completions", `{"prompt":"abcdefgh",`+fmt.Sprintf(contextParams, 0)+`}`), 200)
	if ids := numbers(t, text["prompt_token_ids"]); len(ids) != 2 ||
		at(t, text, "choices", 0, "disaggregated_params", "request_type") != "context_only" {
		t.Errorf("%v", text)
	}
}

// TestOwner: the list of models says which engine this is.
func TestOwner(t *testing.T) {
	for by, want := range map[Connector]string{
		ConnectorNone: "vllm", ConnectorMooncake: "vllm", ConnectorSGLang: "sglang", ConnectorTRTLLM: "tensorrt_llm",
	} {
		e := start(t, func(c *Config) { c.Connector = by })
		if got := at(t, decoded(t, get(t, e, "/v1/models")), "data", 0, "owned_by"); got != want {
			t.Errorf("%s: %v, want %s", by, got, want)
		}
	}
}

func body(t *testing.T, res *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s %s, %v", res.Status, b, err)
	}
	return string(b)
}
