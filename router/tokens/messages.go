package tokens

import (
	"strings"

	"github.com/cognitora/dataplane/internal/jinja"
)

// billing begins a block of Claude Code's system prompt that changes with each request. vLLM leaves
// the block out.
const billing = "x-anthropic-billing-header"

// readMessages reads a body of /v1/messages as vLLM converts it into a chat.
func readMessages(body []byte) (*talk, error) {
	r, err := read(body, []string{"messages", "system", "tools", "thinking", "output_config", "chat_template_kwargs"},
		[]string{"mm_processor_kwargs"})
	if err != nil {
		return nil, err
	}
	t := &talk{options: member(r, "chat_template_kwargs"), generate: true}
	if t.effort, err = effortOf(r); err != nil {
		return nil, err
	}
	if err := t.readSystem(member(r, "system")); err != nil {
		return nil, err
	}
	turns, err := list(r, "messages")
	if err != nil || turns == nil {
		return nil, ErrBody
	}
	if err := each(turns, t.readTurn); err != nil {
		return nil, err
	}
	tools, err := list(r, "tools")
	if err != nil || tools == nil {
		return t, err
	}
	t.tools, err = converted(tools, anthropicTool)
	return t, err
}

// effortOf returns the effort for the template.
func effortOf(r *jinja.Dict) (effort string, err error) {
	if thinking := member(r, "thinking"); thinking != nil {
		d, ok := thinking.(*jinja.Dict)
		if !ok {
			return "", ErrBody
		}
		if kind, _ := member(d, "type").(string); kind != "enabled" && kind != "adaptive" {
			return "", ErrOption // the engine then finds the template's value by trial
		}
	}
	if config := member(r, "output_config"); config != nil {
		d, ok := config.(*jinja.Dict)
		if !ok {
			return "", ErrBody
		}
		return text(d, "effort")
	}
	return "", nil
}

// readSystem puts the system prompt before the messages.
func (t *talk) readSystem(v jinja.Value) error {
	var b strings.Builder
	switch v := v.(type) {
	case nil:
	case string:
		b.WriteString(v)
	case *jinja.List:
		err := each(v, func(block *jinja.Dict) error {
			if member(block, "type") != jinja.Value("text") {
				return ErrForm
			}
			text, err := text(block, "text")
			if !strings.HasPrefix(text, billing) {
				b.WriteString(text)
			}
			return err
		})
		if err != nil {
			return err
		}
	default:
		return ErrBody
	}
	if b.Len() > 0 {
		t.say(dict("role", "system", "content", b.String()))
	}
	return nil
}

// readTurn appends one message. The message's tool results become messages before it.
func (t *talk) readTurn(turn *jinja.Dict) error {
	role, _ := member(turn, "role").(string)
	if role != "user" && role != "assistant" {
		return ErrForm // the place of a later system prompt depends on the template
	}
	to := dict("role", role)
	switch content := member(turn, "content").(type) {
	case string:
		to.Set("content", content)
	case *jinja.List:
		if err := t.readBlocks(content, to); err != nil {
			return err
		}
	default:
		return ErrBody
	}
	if _, ok := to.Get("content"); ok || role == "assistant" {
		t.say(to)
	}
	return nil
}

func (t *talk) readBlocks(content *jinja.List, to *jinja.Dict) error {
	texts, calls, thoughts, thought := &jinja.List{}, &jinja.List{}, strings.Builder{}, false
	for _, item := range content.Items {
		block, ok := item.(*jinja.Dict)
		if !ok {
			return ErrBody
		}
		user := member(to, "role") == jinja.Value("user")
		switch kind, _ := member(block, "type").(string); {
		case kind == "text":
			text, err := text(block, "text")
			if err != nil {
				return err
			}
			if text != "" {
				texts.Items = append(texts.Items, dict("type", "text", "text", text))
			}
		case kind == "thinking" && !user:
			text, err := text(block, "thinking")
			if err != nil {
				return err
			}
			thoughts.WriteString(text)
			thought = thought || member(block, "thinking") != nil
		case kind == "redacted_thinking":
		case kind == "tool_use" && !user:
			call, err := toolUse(block)
			if err != nil {
				return err
			}
			calls.Items = append(calls.Items, call)
		case kind == "tool_result" && user:
			if err := t.readToolResult(block); err != nil {
				return err
			}
		case kind == "image", kind == "document":
			return ErrMedia
		default:
			return ErrForm
		}
	}
	if thought {
		to.Set("reasoning", thoughts.String())
	}
	if len(calls.Items) > 0 {
		to.Set("tool_calls", calls)
	}
	if len(texts.Items) == 1 {
		to.Set("content", member(texts.Items[0].(*jinja.Dict), "text"))
	} else if len(texts.Items) > 1 {
		to.Set("content", texts)
	}
	return nil
}

// toolUse returns a tool call in chat form, whose arguments are values already.
func toolUse(block *jinja.Dict) (*jinja.Dict, error) {
	id, _ := member(block, "id").(string)
	name, _ := member(block, "name").(string)
	input, ok := member(block, "input").(*jinja.Dict)
	if member(block, "input") == nil {
		input, ok = &jinja.Dict{}, true
	}
	if id == "" || name == "" || !ok {
		return nil, ErrForm // the engine makes an id from the time
	}
	return dict("id", id, "type", "function", "function", dict("name", name, "arguments", input)), nil
}

// readToolResult appends a tool's result as a message of its own.
func (t *talk) readToolResult(block *jinja.Dict) error {
	id, err := text(block, "tool_use_id")
	if err != nil {
		return err
	}
	var lines []string
	switch content := member(block, "content").(type) {
	case nil:
	case string:
		lines = []string{content}
	case *jinja.List:
		err := each(content, func(part *jinja.Dict) error {
			switch kind, _ := member(part, "type").(string); kind {
			case "text":
				text, err := text(part, "text")
				lines = append(lines, text)
				return err
			case "image", "document":
				return ErrMedia
			}
			return ErrForm
		})
		if err != nil {
			return err
		}
	default:
		return ErrBody
	}
	t.say(dict("role", "tool", "tool_call_id", id, "content", strings.Join(lines, "\n")))
	return nil
}

// anthropicTool returns a tool for the template.
func anthropicTool(tool *jinja.Dict) (*jinja.Dict, error) {
	schema, ok := member(tool, "input_schema").(*jinja.Dict)
	if kind := member(tool, "type"); !ok || kind != nil && kind != jinja.Value("custom") ||
		member(tool, "defer_loading") != nil {
		return nil, ErrForm // tools run by the API's provider, and tools that are named later
	}
	if _, ok := schema.Get("type"); !ok {
		schema.Set("type", "object")
	}
	return asTool(tool, schema)
}
