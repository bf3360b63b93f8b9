package replay

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/perf/trace"
)

// chatBody returns the body of the request as a streaming chat. The body has a system message, if
// the trace has a system prompt, and one user message with the rest.
func (c *Config) chatBody(q *trace.Request) []byte {
	if c.Body != nil {
		return c.Body(q)
	}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	prompt, system := c.Text.Prompt(nil, q)
	messages := []message{{"user", string(prompt[system:])}}
	if system > 0 {
		messages = []message{{"system", string(prompt[:system])}, messages[0]}
	}
	b, _ := json.Marshal(struct {
		Model     string          `json:"model"`
		Messages  []message       `json:"messages"`
		MaxTokens int             `json:"max_tokens"`
		Stream    bool            `json:"stream"`
		Options   map[string]bool `json:"stream_options"`
		IgnoreEOS bool            `json:"ignore_eos,omitempty"`
		CacheSalt string          `json:"cache_salt,omitempty"`
	}{c.Model, messages, c.outputTokens(q), true, map[string]bool{"include_usage": true}, c.IgnoreEOS, c.CacheSalt})
	return b
}

func (c *Config) outputTokens(q *trace.Request) int {
	n := max(q.OutputLength, 1)
	if c.MaxOutputTokens > 0 {
		n = min(n, c.MaxOutputTokens)
	}
	return n
}

// ask sends one request and reads its answer to the end.
func (r *run) ask(ctx context.Context, q *trace.Request, due time.Duration) sample {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	s := sample{due: due}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.cfg.URL+"/v1/chat/completions",
		bytes.NewReader(r.cfg.chatBody(q)))
	if err != nil {
		s.failure = "bad URL"
		return s
	}
	req.Header.Set("Content-Type", "application/json")
	if r.cfg.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+r.cfg.APIKey)
	}
	if r.cfg.Node != "" {
		req.Header.Set("x-cgn-node", r.cfg.Node)
	}
	s.sent = r.since()
	resp, err := r.client.Do(req)
	if err != nil {
		s.failure, s.answer, s.end = failureOf(ctx, "no answer"), err.Error(), r.since()
		return s
	}
	defer resp.Body.Close()
	s.node = resp.Header.Get("x-cgn-node")
	if resp.StatusCode != http.StatusOK {
		page, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // so that the connection can be reused
		s.failure, s.answer, s.end = "status "+strconv.Itoa(resp.StatusCode), firstOf(page), r.since()
		return s
	}
	r.readStream(ctx, resp.Body, &s)
	s.end = r.since()
	return s
}

// answerBytes is how much of an error's body is kept.
const answerBytes = 500

// firstOf returns the beginning of a page on one line.
func firstOf(page []byte) string {
	return strings.Join(strings.Fields(string(page[:min(len(page), answerBytes)])), " ")
}

// failureOf returns the reason of a failed request: cancelled, timed out, or otherwise.
func failureOf(ctx context.Context, otherwise string) string {
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "timeout"
	case ctx.Err() != nil:
		return "cancelled"
	}
	return otherwise
}

// reading is the buffers of one stream.
type reading struct {
	events sse.Scanner
	buf    [16 << 10]byte
}

var readings = sync.Pool{New: func() any { return new(reading) }}

func (r *run) readStream(ctx context.Context, body io.Reader, s *sample) {
	in := readings.Get().(*reading)
	defer readings.Put(in)
	in.events.Reset()
	var counts usage.Counts
	done := false
	for {
		n, err := body.Read(in.buf[:])
		in.events.Feed(in.buf[:n], func(e sse.Event) {
			done = done || e.IsDone()
			r.readEvent(e.Data, s, &counts)
		})
		if err != nil {
			break
		}
	}
	s.prompt, s.out = counts.Prompt, counts.Completion
	s.cached, s.counted = counts.Cached, counts.HasCached && counts.HasPrompt
	if s.failure == "" && (!done || s.first == 0) {
		s.failure = failureOf(ctx, "broke off")
	}
}

var (
	contentKey = []byte(`content":`)
	toolsKey   = []byte(`"tool_calls":[{`)
	errorStart = []byte(`{"error":`)
)

func (r *run) readEvent(data []byte, s *sample, counts *usage.Counts) {
	if hasToken(data) {
		s.last = r.since()
		s.first = cmp.Or(s.first, s.last)
		s.tokens++
	}
	if bytes.HasPrefix(data, errorStart) {
		s.failure = "error event"
	}
	usage.Merge(data, counts)
}

// hasToken reports whether a chunk contains output: content or reasoning that is not empty, or a
// tool call. The first chunk of many engines contains only the role.
func hasToken(data []byte) bool {
	for rest := data; ; {
		i := bytes.Index(rest, contentKey)
		if i < 0 {
			return bytes.Contains(data, toolsKey)
		}
		rest = bytes.TrimLeft(rest[i+len(contentKey):], " ")
		if len(rest) > 1 && rest[0] == '"' && rest[1] != '"' {
			return true
		}
	}
}
