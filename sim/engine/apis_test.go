package engine

import (
	"bytes"
	"fmt"
	"mime/multipart"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

const weatherTool = `[{"type":"function","function":{"name":"get_weather","parameters":{"type":"object",
	"properties":{"city":{"type":"string"},"days":{"type":"integer"}}}}}]`

func TestToolCallStreamsInFragments(t *testing.T) {
	e := start(t)
	for _, body := range []string{
		chatBody("what now?", `,"stream":true,"tool_choice":"required","tools":`+weatherTool),
		chatBody("please call the tool", `,"stream":true,"tools":`+weatherTool),
	} {
		list, err := events(post(t, e, "/v1/chat/completions", body).Body)
		if err != nil {
			t.Fatal(err)
		}
		if name := at(t, decoded(t, list[1].data), "choices", 0, "delta", "tool_calls", 0, "function",
			"name"); name != "get_weather" {
			t.Fatalf("tool %v", name)
		}
		var args string
		for _, ev := range list[2 : len(list)-1] {
			args += at(t, decoded(t, ev.data), "choices", 0, "delta", "tool_calls", 0, "function", "arguments").(string)
		}
		if args != `{"city":"sun","days":7}` {
			t.Errorf("arguments %s", args)
		}
		if r := at(t, decoded(t, list[len(list)-2].data), "choices", 0, "finish_reason"); r != "tool_calls" {
			t.Errorf("finish reason %v", r)
		}
	}
	doc := object(t, post(t, e, "/v1/chat/completions", chatBody("hello", `,"tools":`+weatherTool)), 200)
	if at(t, doc, "choices", 0, "message", "content") == nil {
		t.Error("a tool was called that nobody asked for")
	}
}

func TestStructuredOutput(t *testing.T) {
	e := start(t)
	doc := object(t, post(t, e, "/v1/chat/completions", chatBody("hello", `,"response_format":{"type":"json_schema",
		"json_schema":{"name":"x","schema":{"type":"object","properties":{"name":{"type":"string"},"état":{"enum":["défait"]}}}}}`)), 200)
	if text := at(t, doc, "choices", 0, "message", "content"); text != `{"name":"sun","état":"défait"}` {
		t.Errorf("content %v", text)
	}
}

func TestResponses(t *testing.T) {
	e := start(t)
	first := object(t, post(t, e, "/v1/responses", `{"model":"sim","input":"`+strings.Repeat("hello ", 30)+`"}`), 200)
	id := first["id"].(string)
	second := object(t, post(t, e, "/v1/responses",
		`{"model":"sim","input":[{"role":"user","content":[{"type":"input_text","text":"again"}]}],"previous_response_id":"`+id+`"}`), 200)
	if n := at(t, second, "usage", "input_tokens_details", "cached_tokens").(float64); n < 48 {
		t.Errorf("%v tokens of the conversation were cached", n)
	}
	if got := get(t, e, "/v1/responses/"+id); !reflect.DeepEqual(decoded(t, got), first) {
		t.Errorf("stored %s, want %v", got, first)
	}
	r, err := http.NewRequest(http.MethodDelete, e.URL()+"/v1/responses/"+id, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if doc := object(t, res, 200); doc["deleted"] != true {
		t.Errorf("deleted: %v", doc)
	}
	object(t, post(t, e, "/v1/responses", `{"model":"sim","input":"x","previous_response_id":"`+id+`"}`), 404)
}

func TestStoredResponsesAreBounded(t *testing.T) {
	e := start(t, func(c *Config) { c.MaxStored = 2 })
	for range 5 {
		object(t, post(t, e, "/v1/responses", `{"input":"x"}`), 200)
	}
	if s := e.core().stored; len(s.byID) != 2 || len(s.order) != 2 {
		t.Errorf("%d responses stored", len(s.byID))
	}
}

func TestResponsesStream(t *testing.T) {
	e := start(t)
	list, err := events(post(t, e, "/v1/responses", `{"input":"x","stream":true,"max_output_tokens":2}`).Body)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, ev := range list {
		doc := decoded(t, ev.data)
		if doc["type"] != ev.name || doc["sequence_number"] != float64(i) {
			t.Errorf("event %d: %v", i, doc)
		}
		names = append(names, strings.TrimPrefix(ev.name, "response."))
	}
	want := []string{"created", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
		"output_text.delta",
		"output_text.done", "content_part.done", "output_item.done", "completed"}
	if !reflect.DeepEqual(names, want) {
		t.Errorf("events %v", names)
	}
	if u := at(t, decoded(t, list[len(list)-1].data), "response", "usage", "output_tokens"); u != 2.0 {
		t.Errorf("%v output tokens", u)
	}
}

func TestMessages(t *testing.T) {
	e := start(t)
	body := `{"model":"sim","max_tokens":4,"system":"be brief","messages":[{"role":"user","content":[{"type":"text","text":"` +
		strings.Repeat("hello ", 30) + `"}]}]`
	doc := object(t, post(t, e, "/v1/messages", body+"}"), 200)
	counted := object(t, post(t, e, "/v1/messages/count_tokens", body+"}"), 200)["input_tokens"]
	if at(t, doc, "stop_reason") != "max_tokens" || at(t, doc, "usage", "input_tokens") != counted {
		t.Errorf("message %v, counted %v", doc, counted)
	}
	list, err := events(post(t, e, "/v1/messages", body+`,"stream":true}`).Body)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, ev := range list {
		names = append(names, ev.name)
	}
	want := "message_start content_block_start " + strings.Repeat("content_block_delta ", 4) + "content_block_stop " +
		"message_delta message_stop"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("events %s", got)
	}
	usage := at(t, decoded(t, list[0].data), "message", "usage").(map[string]any)
	if usage["input_tokens"].(float64)+usage["cache_read_input_tokens"].(float64) != counted ||
		usage["cache_read_input_tokens"] == 0.0 {
		t.Errorf("usage %v, counted %v", usage, counted)
	}
	if refusal := object(t, post(t, e, "/v1/messages",
		`{"model":"other","max_tokens":1,"messages":[{"role":"user","content":"x"}]}`),
		404); refusal["type"] != "error" ||
		at(t, refusal, "error", "type") != "not_found_error" {
		t.Errorf("refusal %v", refusal)
	}
}

func TestTokenizeAndBack(t *testing.T) {
	e := start(t)
	doc := object(t, post(t, e, "/tokenize", `{"prompt":"hello wörld"}`), 200)
	if doc["count"] != 3.0 {
		t.Errorf("%v", doc)
	}
	tokens := strings.ReplaceAll(fmt.Sprintf("%.0f", doc["tokens"]), " ", ",")
	if back := object(t, post(t, e, "/detokenize", `{"tokens":`+tokens+`}`), 200); back["prompt"] != "hello wörld" {
		t.Errorf("%v", back)
	}
	chat := object(t, post(t, e, "/tokenize", chatBody("hello", "")), 200)
	answer := object(t, post(t, e, "/v1/chat/completions", chatBody("hello", "")), 200)
	if chat["count"] != at(t, answer, "usage", "prompt_tokens") {
		t.Errorf("%v tokens, the prompt had %v", chat["count"], answer["usage"])
	}
}

func TestPooling(t *testing.T) {
	e := start(t)
	doc := object(t, post(t, e, "/v1/embeddings", `{"model":"sim","input":["abcd","efghijkl"]}`), 200)
	if n := len(at(t, doc, "data", 1, "embedding").([]any)); n != embeddingSize ||
		at(t, doc, "usage", "prompt_tokens") != 3.0 {
		t.Errorf("%d numbers, usage %v", n, doc["usage"])
	}
	ranked := object(t, post(t, e, "/v1/rerank", `{"query":"q","documents":["a","b","c"],"top_n":2}`), 200)
	if a, b := at(t, ranked, "results", 0, "relevance_score").(float64),
		at(t, ranked, "results", 1, "relevance_score").(float64); a < b {
		t.Errorf("scores %v, %v", a, b)
	}
	scored := object(t, post(t, e, "/v1/score", `{"text_1":"q","text_2":["a","b"]}`), 200)
	if s := at(t, scored, "data", 1, "score").(float64); s < 0 || s > 1 {
		t.Errorf("score %v", s)
	}
}

func TestTranscription(t *testing.T) {
	e := start(t)
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	if err := form.WriteField("model", "sim"); err != nil {
		t.Fatal(err)
	}
	file, err := form.CreateFormFile("file", "a.wav")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.Write(make([]byte, 50000)); err != nil {
		t.Fatal(err)
	}
	if err := form.Close(); err != nil {
		t.Fatal(err)
	}
	doc := object(t, post(t, e, "/v1/audio/transcriptions", body.String(), "Content-Type", form.FormDataContentType()),
		200)
	if text, _ := doc["text"].(string); text == "" || at(t, doc, "usage", "seconds") != 2.0 {
		t.Errorf("%v", doc)
	}
}

func TestOtherPaths(t *testing.T) {
	e := start(t, func(c *Config) { c.Models = []string{"a", "b"}; c.RecordRequests = 1; c.APIKey = "secret" })
	res := post(t, e, "/v1/chat/completions", chatBody("hello", ""))
	object(t, res, 401)
	body := `{"model":"b","messages":[{"role":"user","content":"x"}]}`
	doc := object(t, post(t, e, "/v1/chat/completions", body, "Authorization", "Bearer secret", "Traceparent", "00-1"),
		200)
	if doc["model"] != "b" {
		t.Errorf("model %v", doc["model"])
	}
	seen := e.Requests()
	if len(seen) != 1 || string(seen[0].Body) != body || seen[0].Header.Get("Traceparent") != "00-1" {
		t.Errorf("recorded %+v", seen)
	}
	if v := get(t, e, "/version"); !strings.Contains(v, version) {
		t.Errorf("version %s", v)
	}
	if s := decoded(t, get(t, e, "/sim/stats")); s["received"] != 3.0 {
		t.Errorf("stats %v", s)
	}
}

func TestUnknownPath(t *testing.T) {
	e := start(t)
	if res, err := http.Get(e.URL() + "/v1/models/sim"); err != nil || res.StatusCode != 404 {
		t.Errorf("%v, %v", res, err)
	} else {
		res.Body.Close()
	}
}

func TestUnixSocket(t *testing.T) {
	e := start(t, func(c *Config) { c.Listen = "unix:" + t.TempDir() + "/engine.sock" })
	if !strings.HasPrefix(e.URL(), "unix:///") {
		t.Errorf("URL %s", e.URL())
	}
	e.Refuse()
	if err := e.Accept(); err != nil {
		t.Error(err)
	}
}
