package engine

import (
	"encoding/json"
	"fmt"
)

// messagesRequest is a request of the Anthropic API.
type messagesRequest struct {
	named
	Messages   []message       `json:"messages"`
	System     content         `json:"system"`
	MaxTokens  *int            `json:"max_tokens"`
	Stop       texts           `json:"stop_sequences"`
	Stream     bool            `json:"stream"`
	Tools      json.RawMessage `json:"tools"`
	ToolChoice struct {
		Type string `json:"type"`
		Name string `json:"name"`
	} `json:"tool_choice"`
	CacheSalt string `json:"cache_salt"`
}

func (q *messagesRequest) dialogue() (*dialogue, error) {
	if len(q.Messages) == 0 {
		return nil, badRequest("messages: Field required", "messages")
	}
	d := &dialogue{tools: q.Tools}
	d.Model, d.MaxTokens, d.Stop, d.Stream, d.CacheSalt = q.Model, q.MaxTokens, q.Stop, q.Stream, q.CacheSalt
	if q.System != "" {
		d.system = &message{Role: "system", Content: q.System}
	}
	d.messages = q.Messages
	switch q.ToolChoice.Type {
	case "any":
		d.choice = "required"
	case "tool":
		d.choice = q.ToolChoice.Name
	case "none":
		d.choice = "none"
	}
	var err error
	d.specs, err = flatTools(q.Tools)
	return d, err
}

func countTokens(c *call, q *messagesRequest) error {
	d, err := q.dialogue()
	if err != nil {
		return err
	}
	return c.answer(map[string]int{"input_tokens": len(d.prompt())})
}

func createMessage(c *call, q *messagesRequest) error {
	d, err := q.dialogue()
	if err != nil {
		return err
	}
	if d.MaxTokens == nil {
		return badRequest("max_tokens: Field required", "max_tokens")
	}
	a := &messagesAnswer{call: c, id: c.newID("chatcmpl-")}
	if a.g, a.tool, err = c.begin(d); err != nil {
		return err
	}
	a.model = d.Model
	if d.Stream {
		return a.stream()
	}
	if err := c.follow(a.g, quiet); err != nil {
		return err
	}
	doc := a.message()
	doc["content"] = []any{a.block(a.g.seqs[0].output.whole())}
	doc["stop_reason"], doc["stop_sequence"] = a.stopReason()
	doc["usage"] = a.tokens(a.g.sent[0])
	return c.answer(doc)
}

// messagesAnswer writes one message.
type messagesAnswer struct {
	*call
	g     *generation
	tool  *toolCall
	id    string
	model string
}

// message is the envelope without content.
func (a *messagesAnswer) message() fields {
	return fields{"id": a.id, "type": "message", "role": "assistant", "model": a.model,
		"content": []any{}, "stop_reason": nil, "stop_sequence": nil, "usage": a.tokens(0)}
}

// tokens returns the usage. input_tokens are the uncached prompt tokens.
func (a *messagesAnswer) tokens(output int) fields {
	u := a.usage(a.g)
	f := fields{"input_tokens": u.Prompt, "output_tokens": output}
	if u.Details != nil {
		f["input_tokens"] = u.Prompt - u.Details.Cached
		f["cache_read_input_tokens"] = u.Details.Cached
	}
	return f
}

func (a *messagesAnswer) stopReason() (reason string, sequence any) {
	o := &a.g.seqs[0].output
	switch {
	case o.stopReason != "":
		return "stop_sequence", o.stopReason
	case o.reason == "length":
		return "max_tokens", nil
	case a.tool != nil:
		return "tool_use", nil
	}
	return "end_turn", nil
}

// block returns the content of a complete answer.
func (a *messagesAnswer) block(text string) fields {
	if a.tool == nil {
		return fields{"type": "text", "text": text}
	}
	input := json.RawMessage(text)
	if !json.Valid(input) {
		input = json.RawMessage("{}") // cut short by max_tokens
	}
	return fields{"type": "tool_use", "id": a.toolID(), "name": a.tool.name, "input": input}
}

func (a *messagesAnswer) toolID() string { return "toolu_" + a.id[len("chatcmpl-"):] }

func (a *messagesAnswer) stream() error {
	a.call.stream()
	if err := a.follow(a.g, a.deltas); err != nil {
		return err
	}
	a.event("content_block_stop", fields{"type": "content_block_stop", "index": 0})
	reason, sequence := a.stopReason()
	a.event("message_delta", fields{
		"type":  "message_delta",
		"delta": fields{"stop_reason": reason, "stop_sequence": sequence},
		"usage": fields{"output_tokens": a.g.sent[0]},
	})
	a.event("message_stop", fields{"type": "message_stop"})
	return a.push()
}

// deltas opens the message with the first token, because the cached tokens are known by then.
func (a *messagesAnswer) deltas(_, from, to int, _ bool) {
	if from == 0 {
		a.event("message_start", fields{"type": "message_start", "message": a.message()})
		block := fields{"type": "text", "text": ""}
		if a.tool != nil {
			block = fields{"type": "tool_use", "id": a.toolID(), "name": a.tool.name, "input": fields{}}
		}
		a.event("content_block_start", fields{"type": "content_block_start", "index": 0, "content_block": block})
	}
	kind, member := "text_delta", "text"
	if a.tool != nil {
		kind, member = "input_json_delta", "partial_json"
	}
	for n := from; n < to; n++ {
		a.out = fmt.Appendf(a.out, "event: content_block_delta\ndata: "+
			`{"type":"content_block_delta","index":0,"delta":{"type":%q,%q:`, kind, member)
		a.out = appendQuoted(a.out, a.g.seqs[0].output.text(n))
		a.out = append(a.out, "}}\n\n"...)
	}
}
