// Package usage reads token counts out of engines' answers: a JSON document, which is a response
// body or the data of one server-sent event.
//
// Four spellings are understood:
//
//	chat, completions  usage.prompt_tokens, completion_tokens, total_tokens, prompt_tokens_details.cached_tokens
//	Responses          usage.input_tokens, output_tokens, input_tokens_details.cached_tokens; in events at response.usage
//	Anthropic          usage.input_tokens (what was not cached), output_tokens, cache_read_input_tokens,
//	                   cache_creation_input_tokens; in events at message.usage
//	llama.cpp          timings.cache_n, prompt_n (what was not cached), predicted_n
package usage

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// Counts holds the token counts of one request. The Has field of a count is false if the count was
// absent or null. An engine without a count of cached tokens has not reported 0.
type Counts struct {
	Prompt     int64 // all prompt tokens, including cached ones
	Completion int64
	Cached     int64 // prompt tokens from the engine's prefix cache; not more than Prompt if Prompt is known
	Total      int64 // total_tokens: prompt and completion, as the engine adds them up

	HasPrompt, HasCompletion, HasCached, HasTotal bool
}

var (
	usageKey   = []byte(`"usage"`)
	timingsKey = []byte(`"timings"`)
)

// Merge adds the usage in doc to c; later values replace earlier ones. Merge reports whether doc
// has usage. Merge does not change c if the JSON is invalid, or if a count is not a whole number of
// at least 0. Merge does not allocate. Merge rejects a document without usage as fast as a
// substring search.
func Merge(doc []byte, c *Counts) bool {
	if !bytes.Contains(doc, usageKey) && !bytes.Contains(doc, timingsKey) {
		return false
	}
	var f found
	cur := jsonscan.New(doc)
	if cur.Kind() != jsonscan.Object {
		return false
	}
	f.root(&cur)
	cur.End()
	if cur.Failed() {
		return false
	}
	return f.merge(c)
}

// count is one number of a usage object. ok is false if it was absent, null or unusable.
type count struct {
	n  int64
	ok bool
}

// found holds the fields of one document.
type found struct {
	prompt, input                  count // from the usage object
	completion, total              count
	cached, cacheRead, cacheCreate count
	cacheN, promptN, predictedN    count // from the timings object
}

func (f *found) root(c *jsonscan.Cursor) {
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "usage":
			f.usage(c)
		case "timings":
			f.timings(c)
		case "response", "message":
			f.wrapped(c)
		default:
			c.Skip()
		}
	}
}

// wrapped reads the object around usage in stream events.
func (f *found) wrapped(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) == "usage" {
			f.usage(c)
		} else {
			c.Skip()
		}
	}
}

func (f *found) usage(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "prompt_tokens":
			f.prompt.read(c)
		case "input_tokens":
			f.input.read(c)
		case "completion_tokens", "output_tokens":
			f.completion.read(c)
		case "total_tokens":
			f.total.read(c)
		case "cache_read_input_tokens":
			f.cacheRead.read(c)
		case "cache_creation_input_tokens":
			f.cacheCreate.read(c)
		case "prompt_tokens_details", "input_tokens_details":
			f.details(c)
		default:
			c.Skip()
		}
	}
}

func (f *found) details(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) == "cached_tokens" {
			f.cached.read(c)
		} else {
			c.Skip()
		}
	}
}

func (f *found) timings(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "cache_n":
			f.cacheN.read(c)
		case "prompt_n":
			f.promptN.read(c)
		case "predicted_n":
			f.predictedN.read(c)
		default:
			c.Skip()
		}
	}
}

func (n *count) read(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Number {
		c.Skip()
		return
	}
	if v, ok := c.Int(); ok && v >= 0 {
		*n = count{v, true}
	}
}

// merge combines the four spellings. Timings count only if usage has no such number.
func (f *found) merge(c *Counts) bool {
	prompt, cached, completion := f.prompt, f.cached, f.completion
	if !prompt.ok && f.input.ok {
		prompt = f.inputPrompt(c)
	}
	if !cached.ok {
		cached = f.cacheRead
	}
	if !prompt.ok && f.promptN.ok && !f.input.ok {
		prompt = count{f.promptN.n + f.cacheN.n, true}
	}
	if !cached.ok {
		cached = f.cacheN
	}
	if !completion.ok {
		completion = f.predictedN
	}
	prompt.into(&c.Prompt, &c.HasPrompt)
	cached.into(&c.Cached, &c.HasCached)
	completion.into(&c.Completion, &c.HasCompletion)
	f.total.into(&c.Total, &c.HasTotal)
	if c.HasPrompt && (prompt.ok || cached.ok) {
		c.Cached = min(c.Cached, c.Prompt)
	}
	return prompt.ok || cached.ok || completion.ok || f.total.ok
}

// inputPrompt returns the whole prompt for input_tokens, in which Anthropic counts only uncached
// tokens. inputPrompt ignores a message_delta that repeats input_tokens without cache counts,
// because that would undo the counts of message_start.
func (f *found) inputPrompt(c *Counts) count {
	anthropic := f.cacheRead.ok || f.cacheCreate.ok
	if !anthropic && !f.cached.ok && c.HasPrompt && c.HasCached {
		return count{}
	}
	return count{f.input.n + f.cacheRead.n + f.cacheCreate.n, true}
}

func (n count) into(v *int64, has *bool) {
	if n.ok {
		*v, *has = n.n, true
	}
}
