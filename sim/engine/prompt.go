package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// message is one turn of a conversation.
type message struct {
	Role       string          `json:"role"`
	Content    content         `json:"content"`
	ToolCalls  json.RawMessage `json:"tool_calls"`
	ToolCallID string          `json:"tool_call_id"`
}

// content is a message's text. In JSON a content is a string, or a list of parts whose texts are
// joined. A part without text (image, audio, file) is included as JSON.
type content string

// UnmarshalJSON reads either form.
func (c *content) UnmarshalJSON(b []byte) error {
	if b[0] == '"' && bytes.IndexByte(b, '\\') < 0 {
		*c = content(b[1 : len(b)-1]) // the path of long prompts
		return nil
	}
	if b[0] == '"' {
		return json.Unmarshal(b, (*string)(c))
	}
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil {
		return err
	}
	var text strings.Builder
	for _, raw := range parts {
		var part struct {
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(raw, &part); err == nil && part.Text != nil {
			text.WriteString(*part.Text)
		} else {
			text.Write(raw)
		}
	}
	*c = content(text.String())
	return nil
}

// assistantMark begins the answer.
const assistantMark = "<|assistant|>"

var assistantTokens = appendTokens(nil, assistantMark)

// endMark closes every message of the chat template.
const endMark = "<|end|>\n"

// chatPrompt tokenises a conversation with the fixed template of the package documentation.
func chatPrompt(tools json.RawMessage, messages []message) []uint32 {
	size := len(tools)
	for _, m := range messages {
		size += len(m.Content) + len(m.ToolCalls) + 40
	}
	p := make([]uint32, 0, size/tokenBytes+8)
	if len(tools) > 0 && string(tools) != "null" && string(tools) != "[]" {
		p = appendTokens(p, "<|tools|>")
		p = appendTokens(p, []byte(tools))
		p = appendTokens(p, endMark)
	}
	for _, m := range messages {
		p = appendTokens(p, "<|"+m.Role+"|>")
		p = appendTokens(p, string(m.Content))
		if string(m.ToolCalls) != "null" {
			p = appendTokens(p, []byte(m.ToolCalls))
		}
		p = appendTokens(p, endMark)
	}
	return appendTokens(p, assistantMark)
}

// withoutMark returns a chat prompt without the mark of the answer. If the last message is open, it
// has no end mark either and the answer continues it.
func withoutMark(p []uint32, open bool) []uint32 {
	p = p[:len(p)-len(assistantTokens)]
	if open {
		p = p[:len(p)-len(endMark)/tokenBytes]
	}
	return p
}

// spokenIn returns how many tokens come after the mark of the answer, or -1 if the last tokens of
// the prompt have no mark. It looks for at most so many tokens after the mark.
func spokenIn(p []uint32, most int) int {
	for n := range most + 1 {
		end := len(p) - n
		if end < len(assistantTokens) {
			break
		}
		if slices.Equal(p[end-len(assistantTokens):end], assistantTokens) {
			return n
		}
	}
	return -1
}

// lastText returns the last text of the user.
func lastText(messages []message) string {
	for i := len(messages) - 1; i >= 0; i-- {
		if messages[i].Role == "user" {
			return string(messages[i].Content)
		}
	}
	return ""
}

// prompts is the prompt of /v1/completions and the input of /v1/embeddings: a
// string, token ids, or a list of either.
type prompts [][]uint32

// UnmarshalJSON reads all four forms.
func (p *prompts) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*p = prompts{appendTokens(nil, one)}
		return nil
	}
	var ids []uint32
	if json.Unmarshal(b, &ids) == nil {
		*p = prompts{ids}
		return nil
	}
	var list []json.RawMessage
	if err := json.Unmarshal(b, &list); err != nil {
		return fmt.Errorf("prompt is neither text nor tokens: %w", err)
	}
	for _, item := range list {
		var inner prompts
		if err := inner.UnmarshalJSON(item); err != nil {
			return err
		}
		if len(inner) != 1 {
			return fmt.Errorf("prompt is nested too deeply")
		}
		*p = append(*p, inner[0])
	}
	return nil
}
