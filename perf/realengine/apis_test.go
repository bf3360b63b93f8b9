package realengine

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// models: the list is the fleet's, and each model has its page. The router refuses an unknown model
// itself, whatever the engines would do.
func (w *site) models(t *testing.T) {
	var list struct {
		Data []struct{ ID string }
	}
	if a := w.get("/v1/models"); !a.good() || json.Unmarshal(a.body, &list) != nil || len(list.Data) != 1 ||
		list.Data[0].ID != model {
		t.Errorf("/v1/models: %v", a)
	}
	if a := w.get("/v1/models/" + model); !a.good() || !strings.Contains(string(a.body), `"id":"`+model+`"`) {
		t.Errorf("/v1/models/%s: %v", model, a)
	}
	if a := w.get("/v1/models/another"); a.status != http.StatusNotFound {
		t.Errorf("an unknown model's page: %v", a)
	}
	for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses",
		"/v1/messages"} {
		a := w.post(path, object{"model": "another", "messages": user("x"), "prompt": "x", "input": "x",
			"max_tokens": 4})
		if a.status != http.StatusNotFound || a.node() != "" || a.good() {
			t.Errorf("%s of an unknown model: %v", path, a)
		}
	}
}

// chats: a complete answer, and streams. The client gets the usage chunk only if it asked for it.
func (w *site) chats(t *testing.T) {
	whole := w.must(t, "/v1/chat/completions", chatBody(user("Say something."), nil))
	if c, ok := whole.counts(); !ok || c.prompt == 0 || whole.text() == "" {
		t.Errorf("chat: %v", whole)
	}
	shown := w.must(t, "/v1/chat/completions", chatBody(user("Stream something."), object{
		"stream": true, "stream_options": object{"include_usage": true},
	}))
	if _, ok := shown.counts(); !ok || !shown.done() || shown.text() == "" {
		t.Errorf("stream with include_usage: %v", shown)
	}
	before := w.predictions(t)
	hidden := w.must(t, "/v1/chat/completions", chatBody(user(prose("hidden", 200)), object{"stream": true}))
	if _, ok := hidden.counts(); ok || !hidden.done() || hidden.text() == "" {
		t.Errorf("stream without include_usage: %v", hidden)
	}
	if strings.Contains(string(hidden.body), `"choices":[]`) {
		t.Errorf("the usage chunk was not hidden: %v", hidden)
	}
	w.observed(t, before, 1)
}

// completions: a complete answer, and a stream.
func (w *site) completions(t *testing.T) {
	body := object{"model": model, "prompt": "the router is", "max_tokens": 4}
	whole := w.must(t, "/v1/completions", body)
	if c, ok := whole.counts(); !ok || c.prompt == 0 || whole.text() == "" {
		t.Errorf("completion: %v", whole)
	}
	body["stream"] = true
	if a := w.must(t, "/v1/completions", body); !a.done() || a.text() == "" {
		t.Errorf("streamed completion: %v", a)
	}
}

func (w *site) embeddings(t *testing.T) {
	a := w.must(t, "/v1/embeddings", object{"model": model, "input": []string{"one", "two"}})
	var list struct {
		Data []struct{ Embedding []float64 }
	}
	if json.Unmarshal(a.body, &list) != nil || len(list.Data) != 2 || len(list.Data[0].Embedding) == 0 {
		t.Errorf("embeddings: %v", a)
	}
}

// responses: an engine's Responses API as a complete answer and as a stream, with its counts.
func (w *site) responses(t *testing.T) {
	body := object{"model": model, "input": prose("responses", 600), "max_output_tokens": 4}
	first := w.must(t, "/v1/responses", body)
	again := w.must(t, "/v1/responses", body)
	w.mustReuse(t, first, again)
	body["stream"] = true
	a := w.must(t, "/v1/responses", body)
	w.mustReuse(t, first, a)
	last := a.events()[len(a.events())-1]
	if !slices.Contains([]string{"response.completed", "response.incomplete"}, last.name) {
		t.Errorf("the last event is %q: %v", last.name, a)
	}
}

// messages: an engine's Anthropic API as a complete answer and as a stream, with its counts.
func (w *site) messages(t *testing.T) {
	body := object{"model": model, "max_tokens": 4, "messages": user(prose("messages", 600))}
	first := w.must(t, "/v1/messages", body)
	again := w.must(t, "/v1/messages", body)
	w.mustReuse(t, first, again)
	body["stream"] = true
	a := w.must(t, "/v1/messages", body)
	w.mustReuse(t, first, a)
	if last := a.events()[len(a.events())-1]; last.name != "message_stop" {
		t.Errorf("the last event is %q: %v", last.name, a)
	}
	if a := w.must(t, "/v1/messages/count_tokens", body); !strings.Contains(string(a.body), `"input_tokens":`) {
		t.Errorf("count_tokens: %v", a)
	}
}

// mustReuse checks that a repeated prompt went to the same node, and was found in the engine's
// cache.
func (w *site) mustReuse(t *testing.T, first, again *answer) {
	t.Helper()
	c, ok := again.counts()
	if !ok || c.share() < 0.7 || again.node() != first.node() {
		t.Errorf("a repeat found %+v on %s, the first went to %s: %v", c, again.node(), first.node(), again)
	}
}

// refusals: an engine's own 4xx is forwarded and opens no breaker. The next request is served.
func (w *site) refusals(t *testing.T) {
	for range 20 {
		a := w.chat(user("x"), object{"temperature": "warm"})
		if a.status != http.StatusBadRequest || a.node() == "" || a.attempts() != "1" {
			t.Fatalf("a wrong parameter: %v", a)
		}
	}
	long := w.chat(user(prose("too long", 200_000)), nil)
	if long.status != http.StatusBadRequest || long.attempts() != "1" {
		t.Errorf("a prompt beyond the context: %v", long)
	}
	for id, n := range w.nodes() {
		if n.State != "healthy" {
			t.Errorf("%s is %s", id, n.State)
		}
	}
	for i, a := range together(16, func(int) *answer { return w.chat(user("x"), nil) }) {
		if !a.good() {
			t.Errorf("afterwards, request %d: %v", i, a)
		}
	}
}
