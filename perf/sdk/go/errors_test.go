package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
)

// testCase is one line of cases.json.
type testCase struct {
	Name       string            `json:"name"`
	Router     string            `json:"router"`
	Model      string            `json:"model"`
	Headers    map[string]string `json:"headers"`
	Body       map[string]any    `json:"body"`
	PadBytes   int               `json:"pad_bytes"`
	Hold       []string          `json:"hold"`
	OnlyStream bool              `json:"only_stream"`
	Status     int               `json:"status"`
	Type       string            `json:"type"`
	Code       string            `json:"code"`
	Param      string            `json:"param"`
	Message    string            `json:"message"`
	RetryAfter string            `json:"retry_after"`
}

// api is one API: a complete answer and, if the API has them, a stream.
type api struct {
	name   string
	call   func(context.Context, openai.Client, string, ...option.RequestOption) error
	stream func(context.Context, openai.Client, string, ...option.RequestOption) (tokens int, err error)
}

// drain reads a stream to its end and returns the number of events with a token.
func drain[T any](s *ssestream.Stream[T], token func(*T) bool) (tokens int, err error) {
	for s.Next() {
		if event := s.Current(); token(&event) {
			tokens++
		}
	}
	return tokens, s.Err()
}

var apis = []api{
	{"chat", func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) error {
		_, err := c.Chat.Completions.New(ctx, chat(model, 2000), o...)
		return err
	}, func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) (int, error) {
		return drain(c.Chat.Completions.NewStreaming(ctx, chat(model, 2000), o...),
			func(e *openai.ChatCompletionChunk) bool {
				return len(e.Choices) > 0 && e.Choices[0].Delta.Content != ""
			})
	}},
	{"completions", func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) error {
		_, err := c.Completions.New(ctx, completion(model, 2000), o...)
		return err
	}, func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) (int, error) {
		return drain(c.Completions.NewStreaming(ctx, completion(model, 2000), o...), func(e *openai.Completion) bool {
			return len(e.Choices) > 0 && e.Choices[0].Text != ""
		})
	}},
	{"responses", func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) error {
		_, err := c.Responses.New(ctx, response(model, "Hello", 2000), o...)
		return err
	}, func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) (int, error) {
		return drain(c.Responses.NewStreaming(ctx, response(model, "Hello", 2000), o...),
			func(e *responses.ResponseStreamEventUnion) bool {
				return strings.HasSuffix(e.Type, ".delta")
			})
	}},
	{"embeddings", func(ctx context.Context, c openai.Client, model string, o ...option.RequestOption) error {
		_, err := c.Embeddings.New(ctx, embedding(model), o...)
		return err
	}, nil},
}

func cases(t *testing.T) (all []testCase) {
	t.Helper()
	doc, err := os.ReadFile(os.Getenv("CGN_SDK_CASES"))
	if err == nil {
		err = json.Unmarshal(doc, &all)
	}
	if err != nil || len(all) == 0 {
		t.Fatalf("CGN_SDK_CASES: %d cases, %v", len(all), err)
	}
	return all
}

// options returns the case's options, and one that stores the answer's status.
func (c *testCase) options(status *int) (o []option.RequestOption) {
	o = append(o, option.WithMiddleware(func(r *http.Request, next option.MiddlewareNext) (*http.Response, error) {
		resp, err := next(r)
		if err == nil {
			*status = resp.StatusCode
		}
		return resp, err
	}))
	for name, value := range c.Headers {
		o = append(o, option.WithHeader(name, value))
	}
	for name, value := range c.Body {
		o = append(o, option.WithJSONSet(name, value))
	}
	if c.PadBytes > 0 {
		o = append(o, option.WithJSONSet("padding", strings.Repeat("x", c.PadBytes)))
	}
	return o
}

// TestErrorBodies: every case of cases.json, for every API, gives an *openai.Error with the fields
// of its envelope.
func TestErrorBodies(t *testing.T) {
	for _, tc := range cases(t) {
		router, model := fleetURL, tc.Model
		if tc.Router == "strict" {
			router = strictURL
		}
		if model == "" {
			model = "sim"
		}
		for _, a := range apis {
			if !tc.OnlyStream {
				t.Run(tc.Name+"/"+a.name, func(t *testing.T) {
					healthy(t)
					defer holdStreams(t, tc.Hold)()
					var status int
					tc.check(t, a.call(t.Context(), client(router), model, tc.options(&status)...), &status)
				})
			}
			if a.stream != nil {
				t.Run(tc.Name+"/"+a.name+" stream", func(t *testing.T) {
					healthy(t)
					defer holdStreams(t, tc.Hold)()
					var status int
					_, err := a.stream(t.Context(), client(router), model, tc.options(&status)...)
					tc.check(t, err, &status)
				})
			}
		}
	}
}

// check compares err with the case. A case without a type has an engine's answer without an OpenAI
// envelope (vLLM's 401 is {"error":"Unauthorized"}). openai-go reports that as JSON that it cannot
// decode.
func (c *testCase) check(t *testing.T, err error, status *int) {
	t.Helper()
	if err == nil || *status != c.Status {
		t.Fatalf("status %d, not %d, error %v", *status, c.Status, err)
	}
	var e *openai.Error
	if !errors.As(err, &e) {
		if c.Type != "" {
			t.Errorf("%T: %v", err, err)
		}
		return
	}
	if e.StatusCode != c.Status || c.Type != "" && e.Type != c.Type || c.Code != "" && e.Code != c.Code ||
		c.Param != "" && e.Param != c.Param {
		t.Errorf("status %d, type %q, code %q, param %q of %s", e.StatusCode, e.Type, e.Code, e.Param, e.RawJSON())
	}
	if !strings.Contains(e.RawJSON(), c.Message) {
		t.Errorf("%q is not in %s", c.Message, e.RawJSON())
	}
	if got := e.Response.Header.Get("Retry-After"); c.RetryAfter != "" && got != c.RetryAfter {
		t.Errorf("Retry-After %q, not %q", got, c.RetryAfter)
	}
}

// TestStreamErrors: a stream that fails after its beginning ends with an error, and never silently.
func TestStreamErrors(t *testing.T) {
	for _, tc := range []struct{ name, header, value, code string }{
		{"engine resets", "x-sim-fault", "die_after=10", "backend_failed"},
		{"engine closes", "x-sim-fault", "die_after=10,close=fin", "backend_failed"},
		{"deadline passes", "x-cgn-deadline-ms", "700", "deadline_exceeded"},
	} {
		for _, a := range apis {
			if a.stream == nil {
				continue
			}
			t.Run(tc.name+"/"+a.name, func(t *testing.T) {
				healthy(t)
				tokens, err := a.stream(t.Context(), client(fleetURL), "sim", option.WithHeader(tc.header, tc.value))
				var e *ssestream.StreamError
				if !errors.As(err, &e) || !strings.Contains(e.Message, tc.code) {
					t.Errorf("after %d tokens %T: %v", tokens, err, err)
				}
				whole := 30 // every node dies after 10 tokens, and two more go on with a chat or a completion
				if a.name == "responses" {
					whole = 10
				}
				if tokens == 0 || tc.code == "backend_failed" && tokens != whole {
					t.Errorf("%d tokens came before", tokens)
				}
			})
		}
	}
}

func TestRetryAfterIsHonoured(t *testing.T) {
	healthy(t)
	for _, engine := range engines {
		setFault(t, engine, map[string]any{"status": 429, "retry_after": 1, "count": 1})
	}
	begun := time.Now()
	c := client(fleetURL, option.WithMaxRetries(1))
	if _, err := c.Chat.Completions.New(t.Context(), chat("sim", 1)); err != nil {
		t.Fatal(err)
	}
	if waited := time.Since(begun); waited < 990*time.Millisecond {
		t.Errorf("the SDK retried after %v", waited)
	}
}

func TestClientTimeout(t *testing.T) {
	healthy(t)
	c := client(fleetURL, option.WithRequestTimeout(300*time.Millisecond))
	engineNotices(t, func() {
		_, err := c.Chat.Completions.New(t.Context(), chat("sim", 4), option.WithHeader("x-sim-fault", "hang"))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%T: %v", err, err)
		}
	})
}

func TestKeys(t *testing.T) {
	healthy(t)
	for _, tc := range []struct{ model, key string }{{"keyed", "wrong"}, {"open", key}} {
		c := client(strictURL, option.WithAPIKey(tc.key))
		if _, err := c.Embeddings.New(t.Context(), embedding(tc.model)); err != nil {
			t.Errorf("model %s: %v", tc.model, err)
		}
	}
}
