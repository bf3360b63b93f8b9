package engine

import (
	"encoding/json"
	"fmt"
)

// dialogue is a request of the chat, the Responses or the Anthropic API in a common form: the
// messages and the tools.
type dialogue struct {
	sampling
	tools    json.RawMessage
	specs    []toolSpec
	choice   string // tool choice in OpenAI's terms, or the name of a tool
	format   *responseFormat
	system   *message // precedes the messages; not part of a stored conversation
	messages []message

	ids    []uint32 // the prompt, instead of the messages
	noMark bool     // the prompt has no mark of the answer
	open   bool     // the answer continues the last message; needs noMark
}

func (d *dialogue) prompt() []uint32 {
	if d.ids != nil {
		return d.ids
	}
	messages := d.messages
	if d.system != nil {
		messages = append([]message{*d.system}, messages...)
	}
	p := chatPrompt(d.tools, messages)
	if d.noMark {
		return withoutMark(p, d.open)
	}
	return p
}

// begin decides and prepares the answer. tool is nil for an answer in text.
func (c *call) begin(d *dialogue) (g *generation, tool *toolCall, err error) {
	if tool, err = pickTool(d.specs, d.choice, lastText(d.messages)); err != nil {
		return nil, nil, err
	}
	forced := d.format.example()
	if tool != nil {
		forced = tool.arguments
	}
	g, err = c.generate(&d.sampling, forced, d.prompt())
	return g, tool, err
}

// flatTool is a tool in the form of the Responses API (parameters) and of the Anthropic API
// (input_schema).
type flatTool struct {
	Name        string          `json:"name"`
	Parameters  json.RawMessage `json:"parameters"`
	InputSchema json.RawMessage `json:"input_schema"`
}

// flatTools reads a list of tools. A tool without a name (a built-in one) only becomes part of the
// prompt.
func flatTools(doc json.RawMessage) ([]toolSpec, error) {
	if len(doc) == 0 {
		return nil, nil
	}
	var list []flatTool
	if json.Unmarshal(doc, &list) != nil {
		return nil, badRequest("Input should be a valid list", "tools")
	}
	var specs []toolSpec
	for _, f := range list {
		if f.Name == "" {
			continue
		}
		var s toolSpec
		s.Function.Name, s.Function.Parameters = f.Name, f.Parameters
		if len(f.Parameters) == 0 {
			s.Function.Parameters = f.InputSchema
		}
		specs = append(specs, s)
	}
	return specs, nil
}

// event appends one named server-sent event; doc is the event's data.
func (c *call) event(name string, doc any) {
	c.out = fmt.Appendf(c.out, "event: %s\ndata: ", name)
	c.out = append(appendJSON(c.out, doc), "\n\n"...)
}
