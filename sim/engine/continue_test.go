package engine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
)

// chatted sends a chat and returns the answer, which must have the status.
func chatted(t *testing.T, e *Engine, body string, status int) map[string]any {
	t.Helper()
	return object(t, post(t, e, "/v1/chat/completions", body), status)
}

// numbers returns a list of JSON numbers.
func numbers(t *testing.T, v any) (ids []uint32) {
	t.Helper()
	list, ok := v.([]any)
	if !ok {
		t.Fatalf("%v is no list", v)
	}
	for _, n := range list {
		ids = append(ids, uint32(n.(float64)))
	}
	return ids
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// spoken is what a stream delivered.
type spoken struct {
	prompt, ids []uint32
	text        string
	reason      any
	logprobs    []float64
}

// listen reads a stream of the chat or the completions API.
func listen(t *testing.T, res *http.Response) (s spoken) {
	t.Helper()
	list, err := events(res.Body)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%s, %v", res.Status, err)
	}
	for _, e := range list[:len(list)-1] {
		doc := decoded(t, e.data)
		choice := at(t, doc, "choices", 0).(map[string]any)
		for _, ids := range []any{doc["prompt_token_ids"], choice["prompt_token_ids"]} {
			if ids != nil {
				s.prompt = append(s.prompt, numbers(t, ids)...)
			}
		}
		if ids := choice["token_ids"]; ids != nil {
			s.ids = append(s.ids, numbers(t, ids)...)
		}
		if text, ok := choice["text"].(string); ok {
			s.text += text
		} else if text, ok := at(t, choice, "delta").(map[string]any)["content"].(string); ok {
			s.text += text
		}
		if lp, ok := choice["logprobs"].(map[string]any); ok {
			for _, c := range lp["content"].([]any) {
				s.logprobs = append(s.logprobs, at(t, c, "logprob").(float64))
			}
		}
		s.reason = choice["finish_reason"]
	}
	return s
}

// TestTokenIDs: the ids come where vLLM has them, and only if asked for.
func TestTokenIDs(t *testing.T) {
	e := start(t)
	chat := chatted(t, e, chatBody("hello", `,"max_tokens":5,"return_token_ids":true`), 200)
	tokens := object(t, post(t, e, "/tokenize", chatBody("hello", "")), 200)
	if !reflect.DeepEqual(chat["prompt_token_ids"], tokens["tokens"]) {
		t.Errorf("prompt_token_ids %v, want %v", chat["prompt_token_ids"], tokens["tokens"])
	}
	ids := numbers(t, at(t, chat, "choices", 0, "token_ids"))
	if text := string(appendText(nil, ids)); text != said(t, chat) || len(ids) != 5 {
		t.Errorf("the ids say %q, the text is %q", text, said(t, chat))
	}
	stream := listen(t, post(t, e, "/v1/chat/completions",
		chatBody("hello", `,"max_tokens":5,"stream":true,"return_token_ids":true`)))
	if !reflect.DeepEqual(stream.ids, ids) || !reflect.DeepEqual(stream.prompt, numbers(t, tokens["tokens"])) {
		t.Errorf("stream %+v", stream)
	}
	const body = `{"prompt":"tell me of the sea","max_tokens":5%s}`
	text := object(t, post(t, e, "/v1/completions", fmt.Sprintf(body, `,"return_token_ids":true`)), 200)
	stream = listen(t, post(t, e, "/v1/completions", fmt.Sprintf(body, `,"return_token_ids":true,"stream":true`)))
	want := spoken{
		prompt: numbers(t, at(t, text, "choices", 0, "prompt_token_ids")),
		ids:    numbers(t, at(t, text, "choices", 0, "token_ids")),
		text:   at(t, text, "choices", 0, "text").(string), reason: "length",
	}
	if !reflect.DeepEqual(stream, want) || string(appendText(nil, want.prompt)) != "tell me of the sea" ||
		string(appendText(nil, want.ids)) != want.text {
		t.Errorf("stream %+v, want %+v", stream, want)
	}
	plain := listen(t, post(t, e, "/v1/completions", fmt.Sprintf(body, `,"stream":true`)))
	doc := object(t, post(t, e, "/v1/completions", fmt.Sprintf(body, "")), 200)
	if plain.ids != nil || plain.prompt != nil || at(t, doc, "choices", 0, "token_ids") != nil ||
		at(t, doc, "choices", 0, "prompt_token_ids") != nil {
		t.Errorf("ids came unasked: %+v, %v", plain, doc)
	}
}

// TestContinuation: after any number of delivered tokens another engine goes on with the rest, by
// each way that real engines have.
func TestContinuation(t *testing.T) {
	const tokens = 20
	first := start(t, func(c *Config) { c.Seed = 7 })
	other := start(t, func(c *Config) { c.Seed, c.ID = 7, "other" })
	ask := func(e *Engine, path, more string) spoken {
		return listen(t, post(t, e, path, strings.Replace(more, "{", `{"stream":true,"logprobs":true,`, 1)))
	}
	whole := ask(first, "/v1/chat/completions", chatBody("go on", `,"max_tokens":20,"return_token_ids":true`))
	if len(whole.ids) != tokens {
		t.Fatalf("%+v", whole)
	}
	for n := range tokens {
		ids := jsonOf(t, append(append([]uint32{}, whole.prompt...), whole.ids[:n]...))
		left := fmt.Sprintf(`,"max_tokens":%d`, tokens-n)
		said := whole.text[:n*tokenBytes]
		for way, got := range map[string]spoken{
			"kv_transfer_params": ask(other, "/v1/chat/completions",
				chatBody("anything", left+`,"kv_transfer_params":{"prompt_token_ids":`+ids+`}`)),
			"input_ids": ask(other, "/v1/chat/completions", chatBody("anything", left+`,"input_ids":`+ids)),
			"text": ask(other, "/v1/chat/completions",
				`{"messages":[{"role":"user","content":"go on"},{"role":"assistant","content":`+quote(said)+
					`}],"continue_final_message":true,"add_generation_prompt":false`+left+`}`),
		} {
			if got.text != whole.text[n*tokenBytes:] || got.reason != "length" {
				t.Fatalf("%s after %d tokens: %q, want %q", way, n, got.text, whole.text[n*tokenBytes:])
			}
			if !reflect.DeepEqual(got.logprobs, whole.logprobs[n:]) {
				t.Errorf("%s after %d tokens: logprobs %v, want %v", way, n, got.logprobs, whole.logprobs[n:])
			}
		}
		got := listen(t, post(t, other, "/v1/completions", `{"stream":true,"prompt":`+ids+left+`}`))
		if got.text != whole.text[n*tokenBytes:] {
			t.Fatalf("completions after %d tokens: %q", n, got.text)
		}
	}
	third := start(t, func(c *Config) { c.Seed = 8 })
	if got := ask(third, "/v1/chat/completions", chatBody("go on", `,"max_tokens":20`)); got.text == whole.text {
		t.Error("engines with different seeds say the same")
	}
}

// TestContinuationEndsWhereTheAnswerDid: without max_tokens, and with more than is needed.
func TestContinuationEndsWhereTheAnswerDid(t *testing.T) {
	e := start(t, func(c *Config) { c.OutputTokens, c.EndsItself = 10, true })
	whole := listen(t, post(t, e, "/v1/chat/completions", chatBody("go on",
		`,"stream":true,"max_tokens":99,"return_token_ids":true`)))
	if len(whole.ids) != 10 || whole.reason != "stop" {
		t.Fatalf("%+v", whole)
	}
	for n := range 11 {
		ids := jsonOf(t, append(append([]uint32{}, whole.prompt...), whole.ids[:n]...))
		for path, body := range map[string]string{
			"/v1/completions":      `{"stream":true,"max_tokens":99,"prompt":` + ids + `}`,
			"/v1/chat/completions": chatBody("x", `,"stream":true,"input_ids":`+ids),
		} {
			got := listen(t, post(t, e, path, body))
			if got.text != whole.text[n*tokenBytes:] || got.reason != "stop" {
				t.Errorf("%s after %d tokens: %+v, want %q", path, n, got, whole.text[n*tokenBytes:])
			}
		}
	}
	for more, want := range map[string]int{
		`"max_tokens":10`: 10, `"max_tokens":4`: 4, `"ignore_eos":true,"max_tokens":30`: 30,
		`"min_tokens":15,"max_tokens":30`: 15, `"min_tokens":15`: 15,
	} {
		doc := chatted(t, e, chatBody("go on", ","+more), 200)
		if n := at(t, doc, "usage", "completion_tokens"); n != float64(want) {
			t.Errorf("%s: %v tokens, want %d", more, n, want)
		}
	}
}

func TestStopAfterMinTokens(t *testing.T) {
	e := start(t)
	whole := listen(t, post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":200,"stream":true}`)).text
	// A word that comes early and again later.
	stop, second := "", 0
	for at := 4; at < 40 && second == 0; at += tokenBytes {
		stop = whole[at : at+tokenBytes]
		if next := strings.Index(whole[40:], stop); next >= 0 {
			second = 40 + next
		}
	}
	body := `{"prompt":"x","max_tokens":200,"min_tokens":10,"stream":true,"stop":` + quote(stop) + `}`
	if got := listen(t, post(t, e, "/v1/completions", body)); got.text != whole[:second] || got.reason != "stop" {
		t.Errorf("stopped by %q: %+v, want %q", stop, got, whole[:second])
	}
	object(t, post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":2,"min_tokens":3}`), 400)
}

// TestStopStringHoldsTextBack: text that may begin a stop string comes later than its token.
func TestStopStringHoldsTextBack(t *testing.T) {
	e := start(t)
	body := `{"prompt":"x","max_tokens":5,"stream":true,"return_token_ids":true,"stop":"never said"}`
	list, err := events(post(t, e, "/v1/completions", body).Body)
	if err != nil || len(list) != 6 {
		t.Fatalf("%v, %v", list, err)
	}
	var text strings.Builder
	for i, want := range []int{0, 0, 3, 7, 20} { // 9 bytes come late, until the end
		choice := at(t, decoded(t, list[i].data), "choices", 0)
		text.WriteString(at(t, choice, "text").(string))
		if text.Len() != want || len(numbers(t, at(t, choice, "token_ids"))) != 1 {
			t.Errorf("event %d: %q so far, want %d bytes: %s", i, text.String(), want, list[i].data)
		}
	}
	plain := listen(t, post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":5,"stream":true}`))
	if plain.text != text.String() {
		t.Errorf("%q, want %q", text.String(), plain.text)
	}
}

func TestContinueNeedsNoGenerationPrompt(t *testing.T) {
	e := start(t)
	chatted(t, e, chatBody("x", `,"continue_final_message":true`), 400)
	chatted(t, start(t, func(c *Config) { c.Connector = ConnectorSGLang }),
		chatBody("x", `,"continue_final_message":true`), 200)
	marked := chatted(t, e, chatBody("x", ""), 200)
	bare := chatted(t, e, chatBody("x", `,"add_generation_prompt":false`), 200)
	if a, b := at(t, marked, "usage", "prompt_tokens").(float64), at(t, bare, "usage", "prompt_tokens"); b != a-4 {
		t.Errorf("%v prompt tokens without the mark, %v with it", b, a)
	}
}

func TestAnswerHasTheIDOfItsRequest(t *testing.T) {
	e := start(t)
	for path, prefix := range map[string]string{"/v1/chat/completions": "chatcmpl-", "/v1/completions": "cmpl-"} {
		body := strings.Replace(chatBody("x", ""), "{", `{"prompt":"x",`, 1)
		if id := object(t, post(t, e, path, body, "x-request-id", `my "id"`), 200)["id"]; id != prefix+`my "id"` {
			t.Errorf("%s: id %v", path, id)
		}
	}
}
