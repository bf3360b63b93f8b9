package tokens

import "github.com/cognitora/dataplane/internal/jinja"

// readResponses reads a body of /v1/responses as vLLM converts it into a chat.
func readResponses(body []byte) (*talk, error) {
	r, err := read(body, []string{"input", "instructions", "tools", "reasoning", "truncation", "chat_template_kwargs"},
		[]string{"previous_response_id", "previous_input_messages", "conversation", "prompt", "mm_processor_kwargs",
			"context_management"})
	if err != nil {
		return nil, err
	}
	t := &talk{options: member(r, "chat_template_kwargs"), generate: true, special: true, asWritten: true}
	if truncation := member(r, "truncation"); truncation != nil && truncation != jinja.Value("disabled") {
		return nil, ErrOption
	}
	if reasoning := member(r, "reasoning"); reasoning != nil {
		d, ok := reasoning.(*jinja.Dict)
		if !ok {
			return nil, ErrBody
		}
		if t.effort, err = text(d, "effort"); err != nil {
			return nil, err
		}
	}
	instructions, err := text(r, "instructions")
	if err != nil {
		return nil, err
	}
	if instructions != "" {
		t.say(dict("role", "system", "content", instructions))
	}
	if err := t.readInput(member(r, "input")); err != nil {
		return nil, err
	}
	tools, err := list(r, "tools")
	if err != nil || tools == nil || len(tools.Items) == 0 {
		return t, err
	}
	t.tools, err = converted(tools, responsesTool)
	return t, err
}

// responsesTool returns a tool for the template.
func responsesTool(tool *jinja.Dict) (*jinja.Dict, error) {
	if member(tool, "type") != jinja.Value("function") || member(tool, "defer_loading") != nil {
		return nil, ErrForm // tools run by the server, and tools of another shape
	}
	return asTool(tool, member(tool, "parameters"))
}

func (t *talk) readInput(v jinja.Value) error {
	switch v := v.(type) {
	case string:
		t.say(dict("role", "user", "content", v))
		return nil
	case *jinja.List:
		for i, item := range v.Items {
			d, ok := item.(*jinja.Dict)
			if !ok {
				return ErrBody
			}
			if status := member(d, "status"); i == len(v.Items)-1 && status != nil &&
				status != jinja.Value("completed") {
				return ErrOption // the engine continues an unfinished message
			}
			if err := t.readItem(d); err != nil {
				return err
			}
		}
		return nil
	}
	return ErrBody
}

// readItem appends an item as a message, or adds it to the assistant's message before it.
func (t *talk) readItem(item *jinja.Dict) error {
	before := &jinja.Dict{} // the preceding assistant's message, which an item may complete
	if n := len(t.messages.Items); n > 0 {
		if last := t.messages.Items[n-1].(*jinja.Dict); member(last, "role") == jinja.Value("assistant") {
			before = last
		}
	}
	complete := func(name string, v jinja.Value) {
		if before.Len() > 0 && member(before, name) == nil {
			before.Set(name, v)
			return
		}
		t.say(dict("role", "assistant", name, v))
	}
	kind, _ := member(item, "type").(string)
	role, _ := member(item, "role").(string)
	switch {
	case kind == "function_call":
		call, err := functionCall(item)
		if err != nil {
			return err
		}
		if calls, ok := member(before, "tool_calls").(*jinja.List); ok {
			calls.Items = append(calls.Items, call)
			return nil
		}
		complete("tool_calls", &jinja.List{Items: []jinja.Value{call}})
	case kind == "function_call_output":
		id, _ := member(item, "call_id").(string)
		output := member(item, "output")
		if id == "" || output == nil {
			return ErrBody
		}
		t.say(dict("role", "tool", "content", output, "tool_call_id", id))
	case kind == "reasoning":
		thought, err := reasoningOf(item)
		if err != nil {
			return err
		}
		complete("reasoning", thought)
	case kind != "" && kind != "message":
		return ErrForm
	case role == "assistant":
		said, err := saidOf(item)
		if err != nil {
			return err
		}
		complete("content", said)
	case role == "user", role == "system":
		t.say(dict("role", role, "content", member(item, "content")))
	default:
		return ErrForm
	}
	return nil
}

func functionCall(item *jinja.Dict) (*jinja.Dict, error) {
	id, _ := member(item, "call_id").(string)
	name, _ := member(item, "name").(string)
	arguments, ok := member(item, "arguments").(string)
	if id == "" || name == "" || !ok {
		return nil, ErrBody
	}
	if member(item, "namespace") != nil {
		return nil, ErrForm
	}
	return dict("id", id, "function", dict("name", name, "arguments", arguments), "type", "function"), nil
}

// reasoningOf returns the text of a reasoning item: of its content, else of its summary.
func reasoningOf(item *jinja.Dict) (string, error) {
	content, err := list(item, "content")
	if err != nil {
		return "", err
	}
	summary, err := list(item, "summary")
	switch {
	case err != nil:
		return "", err
	case summary == nil, member(item, "encrypted_content") != nil:
		return "", ErrForm
	case content != nil && len(content.Items) > 0:
		return onlyText(content, "reasoning_text")
	case len(summary.Items) > 0:
		return onlyText(summary, "summary_text")
	}
	return "", nil
}

// saidOf returns the text of an assistant's message.
func saidOf(item *jinja.Dict) (string, error) {
	switch content := member(item, "content").(type) {
	case string:
		return content, nil
	case *jinja.List:
		return onlyText(content, "output_text")
	}
	return "", ErrForm
}

// onlyText returns the text of a list with one part. Of several parts vLLM takes only the first.
func onlyText(parts *jinja.List, kind string) (string, error) {
	if len(parts.Items) != 1 {
		return "", ErrForm
	}
	part, ok := parts.Items[0].(*jinja.Dict)
	if !ok {
		return "", ErrBody
	}
	said, ok := member(part, "text").(string)
	if !ok || member(part, "type") != jinja.Value(kind) {
		return "", ErrForm
	}
	return said, nil
}
