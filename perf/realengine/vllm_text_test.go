package realengine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tokenizer "github.com/cognitora/dataplane/router/tokens"
)

// wholeChat is a chat template that shows everything that the engine passes to it.
const wholeChat = `{# content #}{{ messages|tojson }}{{ (tools or none)|tojson }}{% if documents %}{{ documents|tojson }}{% endif %}{{ enable_thinking }}{{ bos_token }}|{{ eos_token }}|{% if add_generation_prompt %}go{% endif %}`

// TestVLLMText: for texts and chats too, the router's knowledge equals the engine's cache, because
// the router computes the engine's token ids.
func TestVLLMText(t *testing.T) {
	s := prepared(t, "vllm")
	template := filepath.Join(s.run, "whole.jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	events, replay := "ipc://"+filepath.Join(s.run, "text-events"), "ipc://"+filepath.Join(s.run, "text-replay")
	config, err := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events,
		"replay_endpoint": replay, "topic": "kv", "buffer_steps": 10000})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{
		setup: s, id: "vllm-text", address: free(t), flags: vllmFlags(s.model, "--enable-prompt-tokens-details",
			"--kv-events-config", string(config), "--chat-template", template),
		options: ",kv-events=" + events + ",kv-replay=" + replay, tokenizer: s.model, template: template,
	}
	e.start(t)
	e.awaitReady(t)
	m, err := tokenizer.Load(s.model, template)
	if err != nil {
		t.Fatal(err)
	}
	x := &exactText{e: e, set: tokenizer.NewSet(map[string]*tokenizer.Model{model: m}, 1<<20, 1<<20)}
	t.Run("IDs", x.ids)
	w := s.site(t, e)
	x.exact = &exact{site: w, engine: e}
	within(t, soon, "the events are followed", x.following)
	t.Run("Overlap", x.overlap)
}

type exactText struct {
	*exact
	e   *engine
	set *tokenizer.Set
}

func passage(words int) string {
	return strings.Repeat("the router re-fixes preken, Größe 日本語 12345!\n\tcache ", words)
}

var weather = object{"type": "function", "function": object{"name": "get_weather", "description": "Weather in °C",
	"parameters": object{"type": "object", "properties": object{"city": object{"type": "string"}}}}}

func asUser(content any) object { return object{"role": "user", "content": content} }

// chats returns bodies of chats that use every field that changes the prompt.
func chats() map[string]object {
	call := object{"id": "call_1", "type": "function",
		"function": object{"name": "get_weather", "arguments": `{"city": "Köln", "x": [1, 2.50, null]}`}}
	return map[string]object{
		"plain":      {"messages": []any{object{"role": "system", "content": "Be brief."}, asUser("größer <|im_end|> 日本")}},
		"parts":      {"messages": []any{asUser([]any{object{"type": "text", "text": "a"}, object{"type": "text", "text": "b "}})}},
		"tools":      {"messages": []any{asUser("weather?")}, "tools": []any{weather, object{"type": "function", "function": object{"name": "bare"}}}},
		"calls":      {"messages": []any{asUser("weather?"), object{"role": "assistant", "content": nil, "tool_calls": []any{call}}, object{"role": "tool", "tool_call_id": "call_1", "content": "3"}}, "tools": []any{weather}},
		"no calls":   {"messages": []any{asUser("a"), object{"role": "assistant", "content": "b", "tool_calls": []any{}}, asUser("c")}},
		"reasoning":  {"messages": []any{asUser("a"), object{"role": "assistant", "content": "b", "reasoning": "hm"}, asUser("c")}},
		"named":      {"messages": []any{object{"role": "user", "content": "a", "name": "bob"}}},
		"continued":  {"messages": []any{asUser("a"), object{"role": "assistant", "content": "I would say"}}, "add_generation_prompt": false, "continue_final_message": true},
		"no prompt":  {"messages": []any{asUser("a")}, "add_generation_prompt": false},
		"special":    {"messages": []any{asUser("a")}, "add_special_tokens": true},
		"options":    {"messages": []any{asUser("a")}, "chat_template_kwargs": object{"enable_thinking": false, "other": 1}},
		"whitespace": {"messages": []any{asUser(" \n a\t\u00a0\u2028 \r\n b "), object{"role": "assistant", "content": ""}, asUser("\\\"'&<>\u007f\u0001")}},
	}
}

// ids: the router's token ids equal those of the engine's own /tokenize.
func (x *exactText) ids(t *testing.T) {
	for name, body := range chats() {
		x.same(t, name, tokenizer.Chat, body)
	}
	x.same(t, "text", tokenizer.Completions, object{"prompt": passage(3)})
	x.same(t, "text without special tokens", tokenizer.Completions, object{"prompt": " x", "add_special_tokens": false})
}

func (x *exactText) same(t *testing.T, name string, api tokenizer.API, body object) {
	t.Helper()
	body["model"] = model
	page, _ := json.Marshal(body)
	r := x.set.Make(model, api, page, 0, nil)
	if r.Outcome != tokenizer.Exact {
		t.Errorf("%s: %s", name, r.Outcome)
		return
	}
	resp, err := http.Post(x.e.url()+"/tokenize", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Tokens []uint32
		Error  any
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil || !slices.Equal(got.Tokens, r.IDs) {
		t.Errorf("%s: %v %v: the engine has %d ids, we have %d\n%s\n%s", name, err, got.Error, len(got.Tokens),
			len(r.IDs), x.said(t, got.Tokens), x.said(t, r.IDs))
	}
}

// said returns the text of token ids, as the engine writes it.
func (x *exactText) said(t *testing.T, ids []uint32) string {
	page, _ := json.Marshal(object{"model": model, "tokens": ids})
	resp, err := http.Post(x.e.url()+"/detokenize", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Prompt string }
	json.NewDecoder(resp.Body).Decode(&got)
	return got.Prompt
}

// overlap: the router's knowledge of a prompt equals the engine's cached part of it.
func (x *exactText) overlap(t *testing.T) {
	cached := 0
	for i, words := range []int{4, 4, 6, 6, 3} {
		cached += x.holds(t, fmt.Sprint("text ", i), "/v1/completions", object{"prompt": passage(words)})
		cached += x.holds(t, fmt.Sprint("salted text ", i), "/v1/completions", object{"prompt": passage(words),
			"cache_salt": "tenant"})
		messages := []any{object{"role": "system", "content": passage(2)}}
		for turn := range words / 2 {
			messages = append(messages, asUser(fmt.Sprint("turn ", turn, " ", passage(1))), object{"role": "assistant",
				"content": "ok"})
		}
		cached += x.holds(t, fmt.Sprint("chat ", i), "/v1/chat/completions",
			object{"messages": messages[:len(messages)-1]})
		cached += x.holds(t, fmt.Sprint("messages ", i), "/v1/messages",
			object{"system": []any{object{"type": "text", "text": passage(2)}},
				"messages": messages[1 : len(messages)-1]})
		cached += x.holds(t, fmt.Sprint("responses ", i), "/v1/responses", object{"input": messages[:len(messages)-1]})
		cached += x.holds(t, fmt.Sprint("chat with tools ", i), "/v1/chat/completions",
			object{"messages": messages[:len(messages)-1], "tools": []any{weather}, "tool_choice": "none"})
	}
	if cached < 1000 {
		t.Errorf("only %d tokens were cached: this shows little", cached)
	}
	t.Logf("%d prompts: each as known; %d of their %d tokens were cached", x.compared, cached, x.asked)
}

func (x *exactText) holds(t *testing.T, what, path string, body object) (cached int) {
	t.Helper()
	body["model"], body["max_tokens"], body["temperature"] = model, 2, 0
	if path == "/v1/responses" {
		body["max_output_tokens"] = 2
	}
	api := map[string]string{"/v1/completions": "completions", "/v1/chat/completions": "chat",
		"/v1/messages": "messages", "/v1/responses": "responses"}[path]
	known := x.knows(t, api, body)
	a := x.must(t, path, body)
	c, ok := a.counts()
	want := vllmBlock * min(known*ourBlock/vllmBlock, (c.prompt-1)/vllmBlock)
	if cached = max(c.cached, 0); !ok || cached != want {
		t.Errorf("%s: the engine had %d of %d tokens cached, %d blocks of 16 were known: %d tokens", what, cached,
			c.prompt, known, want)
	}
	x.compared, x.asked = x.compared+1, x.asked+c.prompt
	return cached
}
