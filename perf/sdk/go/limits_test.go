package sdk

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go/v2"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// retryCase is one line of retries.json: a request that the guarded router refuses, and how many
// tries an SDK with one retry makes.
type retryCase struct {
	Name       string            `json:"name"`
	Key        string            `json:"key"`
	Model      string            `json:"model"`
	Headers    map[string]string `json:"headers"`
	Words      int               `json:"words"`
	MaxTokens  int64             `json:"max_tokens"`
	Hold       bool              `json:"hold"`
	Succeeds   bool              `json:"succeeds"`
	Status     int               `json:"status"`
	Code       string            `json:"code"`
	Anthropic  string            `json:"anthropic"`
	RetryAfter string            `json:"retry_after"`
	Tries      int               `json:"tries"`
}

// refusal is what an SDK's error says.
type refusal struct {
	status int
	kind   string // OpenAI's code, Anthropic's type
	header http.Header
}

// sdk asks one SDK for a chat, and reads its errors. The header is that of the last answer.
type sdk struct {
	name string
	ask  func(ctx context.Context, c *retryCase, stream bool) (http.Header, error)
	read func(error) (refusal, bool)
}

func drained[T any](s interface {
	Next() bool
	Current() T
	Err() error
}) error {
	for s.Next() {
	}
	return s.Err()
}

func sdks(t *testing.T) []sdk {
	t.Helper()
	var keys map[string]string
	if err := json.Unmarshal([]byte(os.Getenv("CGN_SDK_KEYS")), &keys); err != nil {
		t.Fatal(err)
	}
	guarded := os.Getenv("CGN_SDK_GUARDED")
	return []sdk{
		{"openai", func(ctx context.Context, c *retryCase, stream bool) (http.Header, error) {
			var resp *http.Response
			client := client(guarded, option.WithAPIKey(keys[c.Key]), option.WithMaxRetries(1),
				option.WithResponseInto(&resp))
			var more []option.RequestOption
			for name, value := range c.Headers {
				more = append(more, option.WithHeader(name, value))
			}
			body := openai.ChatCompletionNewParams{Model: c.Model, MaxTokens: openai.Int(c.MaxTokens),
				Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(c.prompt())}}
			var err error
			if stream {
				err = drained(client.Chat.Completions.NewStreaming(ctx, body, more...))
			} else {
				_, err = client.Chat.Completions.New(ctx, body, more...)
			}
			return headerOf(resp), err
		}, func(err error) (r refusal, ok bool) {
			var e *openai.Error
			if ok = errors.As(err, &e); ok {
				r = refusal{e.StatusCode, e.Code, e.Response.Header}
			}
			return r, ok
		}},
		{"anthropic", func(ctx context.Context, c *retryCase, stream bool) (http.Header, error) {
			var resp *http.Response
			client := anthropic.NewClient(anthropicoption.WithoutEnvironmentDefaults(),
				anthropicoption.WithBaseURL(guarded), anthropicoption.WithAPIKey(keys[c.Key]),
				anthropicoption.WithMaxRetries(1), anthropicoption.WithResponseInto(&resp))
			var more []anthropicoption.RequestOption
			for name, value := range c.Headers {
				more = append(more, anthropicoption.WithHeader(name, value))
			}
			body := anthropic.MessageNewParams{Model: c.Model, MaxTokens: c.MaxTokens,
				Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(c.prompt()))}}
			var err error
			if stream {
				err = drained(client.Messages.NewStreaming(ctx, body, more...))
			} else {
				_, err = client.Messages.New(ctx, body, more...)
			}
			return headerOf(resp), err
		}, func(err error) (r refusal, ok bool) {
			var e *anthropic.Error
			if ok = errors.As(err, &e); ok {
				r = refusal{e.StatusCode, string(e.Type()), e.Response.Header}
			}
			return r, ok
		}},
	}
}

func headerOf(resp *http.Response) http.Header {
	if resp == nil {
		return nil
	}
	return resp.Header
}

func (c *retryCase) prompt() string { return strings.Repeat("word ", max(c.Words, 1)) }

// guardedRequests returns how many requests the guarded router has answered, once it has counted
// those that have just ended. Those for completions are left out: held streams end at any time.
func guardedRequests(t *testing.T) int {
	t.Helper()
	for was, now := -1, guardedCounts(t); ; was, now = now, guardedCounts(t) {
		if was == now {
			return now
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func guardedCounts(t *testing.T) (sum int) {
	t.Helper()
	var keys struct{ Reader string }
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, os.Getenv("CGN_SDK_METRICS"), nil)
	if err == nil {
		err = json.Unmarshal([]byte(os.Getenv("CGN_SDK_KEYS")), &keys)
	}
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-api-key", keys.Reader)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.Status, err)
	}
	for lines := bufio.NewScanner(bytes.NewReader(page)); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "cgn_router_requests_total{") && !strings.Contains(line, `api="completions"`) {
			n, err := strconv.Atoi(line[strings.LastIndexByte(line, ' ')+1:])
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}

// TestRetries: every case of retries.json, with and without streaming, gives the SDK's error after
// as many tries as it should.
func TestRetries(t *testing.T) {
	var all []retryCase
	doc, err := os.ReadFile(os.Getenv("CGN_SDK_RETRIES"))
	if err == nil {
		err = json.Unmarshal(doc, &all)
	}
	if err != nil || len(all) == 0 {
		t.Fatalf("CGN_SDK_RETRIES: %d cases, %v", len(all), err)
	}
	for i := range all {
		c := &all[i]
		if c.Model == "" {
			c.Model = "keyed"
		}
		c.MaxTokens = max(c.MaxTokens, 1)
		for _, s := range sdks(t) {
			for name, stream := range map[string]bool{"": false, " stream": true} {
				t.Run(c.Name+"/"+s.name+name, func(t *testing.T) { c.run(t, &s, stream) })
			}
		}
	}
}

// run asks until a request has the case's end.
func (c *retryCase) run(t *testing.T, s *sdk, stream bool) {
	if c.Hold {
		// The held stream of the case before may still end.
		holder := client(os.Getenv("CGN_SDK_GUARDED"), option.WithAPIKey(free(t)), option.WithMaxRetries(5))
		held := holder.Completions.NewStreaming(t.Context(), completion(c.Model, 4000))
		defer held.Close()
		if !held.Next() {
			t.Fatalf("no stream to hold: %v", held.Err())
		}
	}
	for range 200 {
		before := guardedRequests(t)
		_, err := s.ask(t.Context(), c, stream)
		tries := guardedRequests(t) - before
		got, is := s.read(err)
		switch {
		case err != nil && (c.Succeeds || !is):
			t.Fatalf("%T: %v", err, err)
		case c.Succeeds && tries > 1 || err != nil:
			want := c.Code
			if s.name == "anthropic" {
				want = c.Anthropic
			}
			if tries != c.Tries || got.status != c.Status || got.kind != want {
				t.Errorf("%d tries, status %d, %q; not %d, %d, %q", tries, got.status, got.kind, c.Tries, c.Status,
					want)
			}
			if after := got.header.Get("Retry-After"); c.RetryAfter != "" && after != c.RetryAfter {
				t.Errorf("Retry-After %q, not %q", after, c.RetryAfter)
			}
			return
		}
	}
	t.Error("the limit refuses nothing")
}

func free(t *testing.T) string {
	t.Helper()
	var keys struct{ Free string }
	if err := json.Unmarshal([]byte(os.Getenv("CGN_SDK_KEYS")), &keys); err != nil {
		t.Fatal(err)
	}
	return keys.Free
}

// TestLimitHeaders: the headers about limits can be read, on streams too.
func TestLimitHeaders(t *testing.T) {
	limit := map[string]string{
		"openai": "X-Ratelimit-Limit-Tokens", "anthropic": "Anthropic-Ratelimit-Tokens-Limit",
	}
	for _, s := range sdks(t) {
		for _, stream := range []bool{false, true} {
			h, err := s.ask(t.Context(), &retryCase{Key: "metered", Model: "keyed", MaxTokens: 1}, stream)
			if err != nil || h.Get(limit[s.name]) != "60000" {
				t.Errorf("%s, stream %v: %v, %v", s.name, stream, h, err)
			}
		}
	}
}

// TestAnthropicStreamErrors: a stream that fails after its beginning ends with an error.
func TestAnthropicStreamErrors(t *testing.T) {
	for header, want := range map[[2]string]anthropic.ErrorType{
		{"x-sim-fault", "die_after=10"}:           anthropic.ErrorTypeAPIError,
		{"x-sim-fault", "die_after=10,close=fin"}: anthropic.ErrorTypeAPIError,
		{"x-cgn-deadline-ms", "700"}:              anthropic.ErrorTypeTimeoutError,
	} {
		healthy(t)
		c := anthropic.NewClient(anthropicoption.WithoutEnvironmentDefaults(), anthropicoption.WithBaseURL(fleetURL),
			anthropicoption.WithAPIKey("none"), anthropicoption.WithHeader(header[0], header[1]))
		s := c.Messages.NewStreaming(t.Context(), anthropic.MessageNewParams{Model: "sim", MaxTokens: 2000,
			Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("Hello"))}})
		tokens := 0
		for s.Next() {
			if s.Current().Type == "content_block_delta" {
				tokens++
			}
		}
		var e *anthropic.Error
		if !errors.As(s.Err(), &e) || e.Type() != want || tokens == 0 {
			t.Errorf("%v: %T %v after %d tokens", header, s.Err(), s.Err(), tokens)
		}
	}
}
