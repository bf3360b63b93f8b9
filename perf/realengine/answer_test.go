package realengine

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// answer is a response. err is set if its body ended badly.
type answer struct {
	status int
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

func (a *answer) node() string     { return a.header.Get("x-cgn-node") }
func (a *answer) attempts() string { return a.header.Get("x-cgn-attempts") }

func (a *answer) String() string {
	return fmt.Sprintf("%d from %q after %s attempts (%v): %.600s", a.status, a.node(), a.attempts(), a.err, a.body)
}

// good tells whether the answer is a 200 that was read to its end, without an error in it.
func (a *answer) good() bool {
	return a.status == http.StatusOK && a.err == nil && !strings.Contains(string(a.body), `"error":{`)
}

// believed returns the share of the prompt's blocks that the router expected on the node.
func (a *answer) believed() float64 {
	var matched, blocks float64
	if n, _ := fmt.Sscanf(a.header.Get("x-cgn-overlap"), "%f/%f", &matched, &blocks); n < 2 || blocks == 0 {
		return 0
	}
	return matched / blocks
}

// event is one server-sent event.
type event struct{ name, data string }

func (a *answer) events() (all []event) {
	for block := range strings.SplitSeq(strings.ReplaceAll(string(a.body), "\r\n", "\n"), "\n\n") {
		var e event
		for line := range strings.Lines(block) {
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			switch name {
			case "event":
				e.name = strings.TrimSpace(value)
			case "data":
				e.data += strings.TrimSpace(value)
			}
		}
		if e != (event{}) {
			all = append(all, e)
		}
	}
	return all
}

// documents returns the JSON documents of the answer: its body, or the data of its events.
func (a *answer) documents() (all []string) {
	if !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		return []string{string(a.body)}
	}
	for _, e := range a.events() {
		if e.data != "[DONE]" {
			all = append(all, e.data)
		}
	}
	return all
}

// done tells whether the stream ended as its API defines for a complete one.
func (a *answer) done() bool {
	return strings.HasSuffix(strings.TrimRight(string(a.body), "\r\n"), "data: [DONE]")
}

// text returns the model's text of a chat or a completion.
func (a *answer) text() string {
	var b strings.Builder
	for _, doc := range a.documents() {
		var d struct {
			Choices []struct {
				Text           string
				Message, Delta struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(doc), &d) == nil && len(d.Choices) > 0 {
			c := d.Choices[0]
			b.WriteString(c.Text + c.Message.Content + c.Delta.Content)
		}
	}
	return b.String()
}

// counts holds an engine's own numbers; cached is -1 if the engine did not report it.
type counts struct{ prompt, cached int }

func (c counts) share() float64 { return float64(max(c.cached, 0)) / float64(max(c.prompt, 1)) }

type usageDocument struct {
	Usage             *usage
	Response, Message struct{ Usage *usage }
}

type usage struct {
	PromptTokens  int      `json:"prompt_tokens"`
	InputTokens   int      `json:"input_tokens"`
	PromptDetails *details `json:"prompt_tokens_details"`
	InputDetails  *details `json:"input_tokens_details"`
	CacheRead     *int     `json:"cache_read_input_tokens"`
	CacheCreation int      `json:"cache_creation_input_tokens"`
}

type details struct {
	CachedTokens *int `json:"cached_tokens"`
}

// counts returns the last usage in the answer that contains prompt tokens; ok is false if there is
// none.
func (a *answer) counts() (c counts, ok bool) {
	for _, doc := range a.documents() {
		var d usageDocument
		if json.Unmarshal([]byte(doc), &d) != nil {
			continue
		}
		for _, u := range []*usage{d.Usage, d.Response.Usage, d.Message.Usage} {
			if u != nil && u.counts().prompt > 0 {
				c, ok = u.counts(), true
			}
		}
	}
	return c, ok
}

// counts makes APIs comparable. Anthropic's input_tokens do not include tokens that were read from
// or written to the cache; those of other APIs do.
func (u *usage) counts() counts {
	c := counts{u.PromptTokens + u.InputTokens, -1}
	for _, d := range []*details{u.PromptDetails, u.InputDetails} {
		if d != nil && d.CachedTokens != nil {
			c.cached = *d.CachedTokens
		}
	}
	if u.CacheRead != nil {
		c.cached = *u.CacheRead
		c.prompt += *u.CacheRead + u.CacheCreation
	}
	return c
}
