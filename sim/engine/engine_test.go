package engine

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// start runs an engine with test speed.
func start(t testing.TB, change ...func(*Config)) *Engine {
	t.Helper()
	cfg := Config{Speed: 1000}
	for _, f := range change {
		f(&cfg)
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return e
}

// post sends a body and returns the answer with an open body.
func post(t testing.TB, e *Engine, path, body string, header ...string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, e.URL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// object reads a JSON answer with the given status.
func object(t testing.TB, res *http.Response, status int) map[string]any {
	t.Helper()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != status {
		t.Fatalf("status %d, want %d: %s", res.StatusCode, status, body)
	}
	var doc map[string]any
	if err := json.Unmarshal(body, &doc); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	return doc
}

// sse is one server-sent event.
type sse struct{ name, data string }

// events reads a stream to its end. err is nil for a clean end.
func events(body io.Reader) (list []sse, err error) {
	var e sse
	r := bufio.NewReader(body)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return list, err
		}
		line = strings.TrimRight(line, "\n")
		switch {
		case line == "" && e != sse{}:
			list, e = append(list, e), sse{}
		case strings.HasPrefix(line, "event: "):
			e.name = line[7:]
		case strings.HasPrefix(line, "data: "):
			e.data = line[6:]
		}
	}
}

// at walks a JSON document by keys and indices.
func at(t testing.TB, doc any, path ...any) any {
	t.Helper()
	for i, p := range path {
		switch k := p.(type) {
		case string:
			m, ok := doc.(map[string]any)
			if !ok {
				t.Fatalf("%v: no object at %v", path, path[:i])
			}
			doc = m[k]
		case int:
			l, ok := doc.([]any)
			if !ok || k >= len(l) {
				t.Fatalf("%v: no element %d", path, k)
			}
			doc = l[k]
		}
	}
	return doc
}

func decoded(t testing.TB, doc string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(doc), &m); err != nil {
		t.Fatalf("%v: %s", err, doc)
	}
	return m
}

// soon bounds the wait for events that take milliseconds on an idle machine.
const soon = time.Minute

// eventually polls until ok returns true, for soon at most.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(soon), time.Tick(time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}

func chatBody(text string, more string) string {
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":%s}]%s}`, quote(text), more)
}

func TestChatIsRepeatableAndCached(t *testing.T) {
	e := start(t)
	body := chatBody(strings.Repeat("the long prompt ", 40), `,"max_tokens":8`)
	first := object(t, post(t, e, "/v1/chat/completions", body), 200)
	second := object(t, post(t, e, "/v1/chat/completions", body), 200)
	if a, b := at(t, first, "choices", 0, "message", "content"), at(t, second, "choices", 0, "message",
		"content"); a != b {
		t.Errorf("answers differ: %q, %q", a, b)
	}
	if n := at(t, first, "usage", "prompt_tokens_details", "cached_tokens"); n != 0.0 {
		t.Errorf("first request found %v cached tokens", n)
	}
	// 167 tokens are 10 full blocks.
	if n := at(t, second, "usage", "prompt_tokens_details", "cached_tokens"); n != 160.0 {
		t.Errorf("second request found %v cached tokens, prompt %v", n, at(t, second, "usage", "prompt_tokens"))
	}
	if n := at(t, second, "usage", "completion_tokens"); n != 8.0 {
		t.Errorf("%v completion tokens", n)
	}
}

func TestNextTurnFindsTheAnswer(t *testing.T) {
	e := start(t)
	first := object(t, post(t, e, "/v1/chat/completions", chatBody("tell me of the sea", `,"max_tokens":200`)), 200)
	said := at(t, first, "choices", 0, "message", "content").(string)
	next := fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":"tell me of the sea"},
		{"role":"assistant","content":%s},{"role":"user","content":"go on"}]}`, quote(said))
	second := object(t, post(t, e, "/v1/chat/completions", next), 200)
	cached := at(t, second, "usage", "prompt_tokens_details", "cached_tokens").(float64)
	if cached < 192 { // 200 generated tokens without the last block
		t.Errorf("only %v of %v tokens were cached", cached, at(t, second, "usage", "prompt_tokens"))
	}
}

func TestStreamEndsWithUsageOnlyIfAsked(t *testing.T) {
	e := start(t)
	for _, want := range []bool{false, true} {
		more := `,"stream":true,"max_tokens":5`
		if want {
			more += `,"stream_options":{"include_usage":true}`
		}
		list, err := events(post(t, e, "/v1/chat/completions", chatBody("hello", more)).Body)
		if err != nil {
			t.Fatal(err)
		}
		if last := list[len(list)-1].data; last != "[DONE]" {
			t.Errorf("stream ends with %q", last)
		}
		chunks := 1 + 5 // role and tokens
		if want {
			chunks++
			u := decoded(t, list[len(list)-2].data)
			if n := at(t, u, "usage", "completion_tokens"); n != 5.0 || len(u["choices"].([]any)) != 0 {
				t.Errorf("usage chunk %v", u)
			}
		}
		if len(list) != chunks+1 {
			t.Errorf("%d events, want %d", len(list), chunks+1)
		}
	}
}

func TestErrors(t *testing.T) {
	e := start(t, func(c *Config) { c.MaxModelTokens = 100 })
	for _, tc := range []struct {
		name, path, body string
		status           int
	}{
		{"bad JSON", "/v1/chat/completions", `{"model":`, 400},
		{"no messages", "/v1/chat/completions", `{"model":"sim"}`, 400},
		{"wrong type", "/v1/chat/completions", `{"model":"sim","messages":7}`, 400},
		{"unknown model", "/v1/chat/completions", `{"model":"other","messages":[{"role":"user","content":"x"}]}`, 404},
		{"long prompt", "/v1/chat/completions", chatBody(strings.Repeat("long ", 200), ""), 400},
		{"n", "/v1/completions", `{"model":"sim","prompt":"x","n":0}`, 400},
		{"stream_options without stream", "/v1/completions", `{"model":"sim","prompt":"x","stream_options":{}}`, 400},
		{"no prompt", "/v1/completions", `{"model":"sim"}`, 400},
	} {
		t.Run(tc.name, func(t *testing.T) {
			doc := object(t, post(t, e, tc.path, tc.body), tc.status)
			if code := at(t, doc, "error", "code"); code != float64(tc.status) {
				t.Errorf("code %v in %v", code, doc)
			}
			for _, field := range []string{"message", "type"} {
				if s, _ := at(t, doc, "error", field).(string); s == "" {
					t.Errorf("no %s in %v", field, doc)
				}
			}
		})
	}
}

func TestCompletionForms(t *testing.T) {
	e := start(t)
	for _, tc := range []struct {
		prompt          string
		choices, tokens int
	}{
		{`"abcdefgh"`, 2, 2},
		{`["abcd","efghi"]`, 4, 3},
		{`[1,2,3]`, 2, 3},
		{`[[1,2],[3]]`, 4, 3},
	} {
		doc := object(t, post(t, e, "/v1/completions", `{"prompt":`+tc.prompt+`,"n":2,"max_tokens":3}`), 200)
		if n := len(doc["choices"].([]any)); n != tc.choices {
			t.Errorf("%s: %d choices", tc.prompt, n)
		}
		if n := at(t, doc, "usage", "prompt_tokens"); n != float64(tc.tokens) {
			t.Errorf("%s: %v prompt tokens", tc.prompt, n)
		}
		if n := at(t, doc, "usage", "completion_tokens"); n != float64(3*tc.choices) {
			t.Errorf("%s: %v completion tokens", tc.prompt, n)
		}
	}
}

func TestStopString(t *testing.T) {
	e := start(t)
	whole := at(t, object(t, post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":20}`), 200), "choices", 0,
		"text").(string)
	stop := whole[30:36]
	want, _, _ := strings.Cut(whole, stop)
	doc := object(t, post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":20,"stop":[`+quote(stop)+`]}`), 200)
	if got := at(t, doc, "choices", 0, "text"); got != want {
		t.Errorf("text %q, want %q", got, want)
	}
	if r := at(t, doc, "choices", 0, "finish_reason"); r != "stop" || at(t, doc, "choices", 0, "stop_reason") != stop {
		t.Errorf("finish reason %v", doc)
	}
	list, err := events(post(t, e, "/v1/completions", `{"prompt":"x","max_tokens":20,"stream":true,"stop":`+quote(stop)+
		`}`).Body)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, ev := range list[:len(list)-1] {
		got.WriteString(at(t, decoded(t, ev.data), "choices", 0, "text").(string))
	}
	if got.String() != want {
		t.Errorf("streamed %q, want %q", got.String(), want)
	}
}
