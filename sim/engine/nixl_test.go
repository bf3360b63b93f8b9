package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const wishDecode = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,` +
	`"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// pair starts two engines with the same words.
func pair(t *testing.T, change ...func(*Config)) (p, d *Engine) {
	t.Helper()
	nixl := func(c *Config) { c.Connector = ConnectorNIXL }
	p = start(t, append([]func(*Config){nixl, func(c *Config) { c.ID = "p" }}, change...)...)
	d = start(t, append([]func(*Config){nixl, func(c *Config) { c.ID = "d" }}, change...)...)
	return p, d
}

// prefilled lets p compute a prompt for another engine. prefilled returns the answer's
// kv_transfer_params as JSON.
func prefilled(t *testing.T, p *Engine, text string) string {
	t.Helper()
	doc := chatted(t, p, chatBody(text, `,"max_tokens":1,`+wishDecode), 200)
	params := doc["kv_transfer_params"]
	if params == nil {
		t.Fatalf("no kv_transfer_params in %v", doc)
	}
	b, err := json.Marshal(params)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func decodeBody(text, params string) string {
	return chatBody(text, `,"max_tokens":9,"kv_transfer_params":`+params)
}

func said(t *testing.T, doc map[string]any) string {
	t.Helper()
	return at(t, doc, "choices", 0, "message", "content").(string)
}

// shape writes the names of a document's members in their order, with the types of their values.
func shape(t *testing.T, doc string) string {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var b strings.Builder
	for {
		token, err := d.Token()
		if err != nil {
			return b.String()
		}
		switch v := token.(type) {
		case json.Delim:
			b.WriteString(v.String())
		case string:
			if strings.HasPrefix(strings.TrimSpace(doc[d.InputOffset():]), ":") {
				fmt.Fprintf(&b, "%q:", v)
			} else {
				b.WriteString("string ")
			}
		case json.Number:
			b.WriteString("number ")
		default:
			fmt.Fprintf(&b, "%v ", v)
		}
	}
}

// TestTransferHasTheBytesOfVLLM: the answers of both legs have the recorded members, in the order
// and with the types of the recording.
func TestTransferHasTheBytesOfVLLM(t *testing.T) {
	var recorded map[string]json.RawMessage
	if err := json.Unmarshal([]byte(golden(t, "pd_nixl.json")), &recorded); err != nil {
		t.Fatal(err)
	}
	p, d := pair(t)
	body := func(name string, params json.RawMessage) string {
		var b map[string]json.RawMessage
		if err := json.Unmarshal(recorded[name], &b); err != nil {
			t.Fatal(err)
		}
		b["model"] = json.RawMessage(`"sim"`)
		if params != nil {
			b["kv_transfer_params"] = params
		}
		doc, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(doc)
	}
	answer := func(e *Engine, body string) string {
		b, err := io.ReadAll(post(t, e, "/v1/chat/completions", body).Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// The recorded engine had 11 blocks, the simulated one tokenises by itself.
	ids := func(doc string) string { return strings.ReplaceAll(doc, "number number ", "number ") }
	same := func(name, got string) {
		want := shape(t, string(recorded[name]))
		got = shape(t, got)
		for i := 0; i < 8; i++ {
			got, want = ids(got), ids(want)
		}
		if got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
	first := answer(p, body("prefill_request", nil))
	same("prefill_response", first)
	var params struct {
		KV json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal([]byte(first), &params); err != nil {
		t.Fatal(err)
	}
	same("decode_response", answer(d, body("decode_request", params.KV)))
}

// TestTransfer: the second engine says what it would have said alone, computes no prompt, and frees
// the first engine's blocks.
func TestTransfer(t *testing.T) {
	p, d := pair(t)
	alone := start(t)
	text := strings.Repeat("tell me of the sea ", 20)
	want := said(t, chatted(t, alone, chatBody(text, `,"max_tokens":9`), 200))
	for _, cached := range []float64{0, 96} { // the second time P finds its own blocks
		params := prefilled(t, p, text)
		if s := p.Stats(); s.LentRequests != 1 || s.LentBlocks != 7 || s.UsedBlocks != 7 {
			t.Errorf("after the prefill: %+v", s)
		}
		doc := chatted(t, d, decodeBody(text, params), 200)
		if got := said(t, doc); got != want {
			t.Errorf("answer %q, want %q", got, want)
		}
		if n := at(t, doc, "usage", "prompt_tokens_details", "cached_tokens"); n != cached {
			t.Errorf("%v cached tokens, want %v", n, cached)
		}
		if doc["kv_transfer_params"] != nil {
			t.Errorf("the second leg has %v", doc["kv_transfer_params"])
		}
		eventually(t, "blocks that were read are free", func() bool {
			s := p.Stats()
			return s.LentRequests == 0 && s.LentBlocks == 0 && s.UsedBlocks == 0
		})
	}
	if s := p.Stats(); s.Lent != 2 || s.ExpiredLeases != 0 || s.ComputedTokens != 103+7 || s.ReceivedTokens != 0 {
		t.Errorf("first engine %+v", s)
	}
	// The second time the second engine has all full blocks.
	if s := d.Stats(); s.ComputedTokens != 0 || s.ReceivedTokens != 103+7 || s.WrongBlocks+s.LostBlocks != 0 {
		t.Errorf("second engine %+v", s)
	}
}

func TestTransferOfAnotherPromptIsWrong(t *testing.T) {
	p, d := pair(t)
	params := prefilled(t, p, "the prompt of somebody else")
	theirs := said(t, object(t, post(t, start(t), "/v1/chat/completions",
		chatBody("the prompt of somebody else", `,"max_tokens":9`)), 200))
	doc := chatted(t, d, decodeBody("my prompt", params), 200)
	if got := said(t, doc); got != theirs {
		t.Errorf("answer %q, want the one of the other prompt, %q", got, theirs)
	}
	if s := d.Stats(); s.WrongBlocks != 1 || s.LostBlocks != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLostBlocks: what the second engine makes of blocks that were read before, whose lease ended,
// or whose engine died.
func TestLostBlocks(t *testing.T) {
	const text = "a prompt whose blocks get lost"
	want := said(t, chatted(t, start(t), chatBody(text, `,"max_tokens":9`), 200))
	lose := map[string]func(t *testing.T, p *Engine, params string){
		"used": func(t *testing.T, p *Engine, params string) {
			third := start(t, func(c *Config) { c.Connector = ConnectorNIXL })
			chatted(t, third, decodeBody(text, params), 200)
		},
		"expired": func(t *testing.T, p *Engine, _ string) {
			eventually(t, "the lease ends", func() bool { return p.Stats().ExpiredLeases == 1 })
			eventually(t, "the blocks are free", func() bool { return p.Stats().UsedBlocks == 0 })
		},
		"killed": func(_ *testing.T, p *Engine, _ string) { p.Kill() },
		"restarted": func(t *testing.T, p *Engine, _ string) {
			p.Kill()
			if err := p.Accept(); err != nil {
				t.Fatal(err)
			}
		},
		"refused": func(_ *testing.T, p *Engine, _ string) { p.Refuse() },
	}
	for how, lose := range lose {
		for _, policy := range []LoadFailure{LoadFail, LoadRecompute, LoadStale} {
			t.Run(how+" "+string(policy), func(t *testing.T) {
				p, d := pair(t, func(c *Config) {
					c.LoadFailure = policy
					if how == "expired" {
						c.BlockLease = time.Millisecond
					}
				})
				params := prefilled(t, p, text)
				lose(t, p, params)
				res := post(t, d, "/v1/chat/completions", decodeBody(text, params))
				s := d.Stats()
				switch gone := how == "killed" || how == "refused"; {
				case policy == LoadRecompute:
					if got := said(t, object(t, res, 200)); got != want || s.LostBlocks != 1 {
						t.Errorf("answer %q, %+v", got, s)
					}
				case policy == LoadStale && !gone:
					if got := said(t, object(t, res, 200)); got == want || s.WrongBlocks != 1 || s.LostBlocks != 0 {
						t.Errorf("answer %q, %+v", got, s)
					}
				default:
					doc := object(t, res, 500)
					if kind := at(t, doc, "error", "type"); kind != "InternalServerError" || s.LostBlocks != 1 {
						t.Errorf("%v, %+v", doc, s)
					}
					stream := strings.Replace(decodeBody(text, params), "{", `{"stream":true,`, 1)
					chatted(t, d, stream, 500)
					if s := d.Stats(); s.LostBlocks != 2 {
						t.Errorf("after the stream: %+v", s)
					}
				}
			})
		}
	}
}

// TestLostBlocksInAStream: vLLM finds the loss when it has sent the head and the role.
func TestLostBlocksInAStream(t *testing.T) {
	p, d := pair(t, func(c *Config) { c.LoadFailure = LoadFailInStream })
	params := prefilled(t, p, "hello")
	p.Kill()
	stream := strings.Replace(decodeBody("hello", params), "{", `{"stream":true,`, 1)
	res := post(t, d, "/v1/chat/completions", stream)
	list, err := events(res.Body)
	if err != nil || res.StatusCode != 200 || len(list) != 3 || list[2].data != "[DONE]" ||
		!strings.Contains(list[0].data, `{"role":"assistant","content":""}`) {
		t.Fatalf("%s, %v, %v", res.Status, list, err)
	}
	if code := at(t, decoded(t, list[1].data), "error", "code"); code != 500.0 {
		t.Errorf("%v", list)
	}
	chatted(t, d, decodeBody("hello", params), 500)
}

// TestWithoutTransfer: parameters that name no blocks, and engines without a connector.
func TestWithoutTransfer(t *testing.T) {
	p, d := pair(t)
	plain := start(t)
	body := func(params string) string { return decodeBody("hello", params) }
	want := said(t, chatted(t, plain, body("null"), 200))
	for _, params := range []string{"null", "{}", `{"do_remote_prefill":true}`,
		`{"do_remote_prefill":true,"remote_block_ids":[[1]],"remote_engine_id":7,"remote_port":"x"}`} {
		if got := said(t, chatted(t, d, body(params), 200)); got != want {
			t.Errorf("%s: %q, want %q", params, got, want)
		}
	}
	doc := chatted(t, plain, chatBody("hello", `,"max_tokens":1,`+wishDecode), 200)
	if v, there := doc["kv_transfer_params"]; v != nil || !there {
		t.Errorf("an engine without a connector answered %v", doc)
	}
	if s := plain.Stats(); s.LentRequests != 0 || plain.SideChannel() != "" {
		t.Errorf("%+v", s)
	}
	chatted(t, d, body(`[]`), 400)
	// A stop string ended the answer, so there is nothing to go on with.
	doc = object(t, post(t, p, "/v1/chat/completions", chatBody("hello", `,"max_tokens":1,"stop":`+
		quote(want[:2])+`,`+wishDecode)), 200)
	if doc["kv_transfer_params"] != nil || p.Stats().LentRequests != 0 {
		t.Errorf("a stopped answer is lent: %v", doc)
	}
}

// TestAbortedPrefillIsFreed: blocks are kept only for an answer that is complete.
func TestAbortedPrefillIsFreed(t *testing.T) {
	p, _ := pair(t)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL()+"/v1/chat/completions",
		strings.NewReader(chatBody("hello", `,"max_tokens":100000,"stream":true,`+wishDecode)))
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	eventually(t, "the request runs", func() bool { return p.Stats().UsedBlocks > 0 })
	leave()
	eventually(t, "the blocks are free", func() bool { s := p.Stats(); return s.Aborted == 1 && s.UsedBlocks == 0 })
	if s := p.Stats(); s.Lent != 0 || s.Completed != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTransferBetweenRanks(t *testing.T) {
	p, d := pair(t, func(c *Config) { c.DataParallel = 2 })
	params := prefilled(t, p, "ranks have block stores of their own")
	if !strings.Contains(params, "_dp") {
		t.Errorf("%s does not name a rank", params)
	}
	chatted(t, d, decodeBody("ranks have block stores of their own", params), 200)
	if s := d.Stats(); s.ComputedTokens != 0 || s.WrongBlocks != 0 {
		t.Errorf("%+v", s)
	}
}

func TestTransferConfig(t *testing.T) {
	for field, cfg := range map[string]Config{
		"Role": {Role: "x"}, "Connector": {Connector: "x"}, "LoadFailure": {LoadFailure: "x"},
		"SideChannel": {Connector: ConnectorNIXL, SideChannel: "nowhere"}, "BlockLease": {BlockLease: -1},
	} {
		e, err := New(cfg)
		if err == nil {
			e.Close()
			t.Errorf("a bad %s was taken", field)
		} else if !strings.Contains(err.Error(), field) {
			t.Errorf("%v does not name %s", err, field)
		}
	}
}
