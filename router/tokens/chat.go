package tokens

import (
	"strings"

	"github.com/cognitora/dataplane/internal/jinja"
	"github.com/cognitora/dataplane/internal/jsonscan"
)

// Chat makes the prompt of a body of /v1/chat/completions as vLLM does. most bounds its bytes.
func (m *Model) Chat(body []byte, most int) (p Prompt, err error) {
	r, err := readRequest(body)
	if err != nil {
		return p, err
	}
	tools, err := toolsOf(r.tools)
	if err != nil {
		return p, err
	}
	template := m.chat
	if tools != nil && m.tools != nil {
		template = m.tools
	}
	if template == nil {
		return p, ErrTemplate
	}
	messages, err := conversation(r.messages, template.parts)
	if err != nil {
		return p, err
	}
	p.Turn = turn(messages)
	if or(r.goOn, false) {
		if err := leaveOpen(messages); err != nil {
			return p, err
		}
	}
	variables, err := m.variables(&r, messages, tools)
	if err != nil {
		return p, err
	}
	if p.Text, err = template.Render(variables, jinja.Limits{Bytes: most, Steps: most + 100_000}); err != nil {
		return p, err
	}
	if or(r.goOn, false) {
		if p.Text, err = cutOpen(p.Text); err != nil {
			return p, err
		}
	}
	p.Special = or(r.special, false)
	return p, nil
}

func (m *Model) variables(r *request, messages, tools *jinja.List) (*jinja.Dict, error) {
	v := &jinja.Dict{}
	for i := range m.specials.Len() {
		v.Set(m.specials.Member(i))
	}
	v.Set("messages", messages)
	v.Set("tools", nil)
	if tools != nil {
		v.Set("tools", tools)
	}
	v.Set("documents", r.documents)
	v.Set("add_generation_prompt", or(r.generate, true))
	if or(r.goOn, false) && or(r.generate, true) {
		return nil, ErrBody // the engine refuses both
	}
	if r.effort != nil {
		v.Set("reasoning_effort", r.effort)
	}
	if r.options == nil {
		return v, nil
	}
	options, ok := r.options.(*jinja.Dict)
	if !ok {
		return nil, ErrBody
	}
	for i := range options.Len() {
		key, value := options.Member(i)
		switch key {
		case "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "conversation", "tokenize",
			"padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs":
			return nil, ErrOption
		}
		v.Set(key, value)
	}
	return v, nil
}

// conversation is the messages as the template gets them: with the members that matter, in a fixed order.
func conversation(v jinja.Value, parts bool) (*jinja.List, error) {
	list, ok := v.(*jinja.List)
	if !ok || len(list.Items) == 0 {
		return nil, ErrBody
	}
	out := &jinja.List{Items: make([]jinja.Value, 0, len(list.Items))}
	for _, item := range list.Items {
		from, ok := item.(*jinja.Dict)
		if !ok {
			return nil, ErrBody
		}
		to, err := message(from, parts)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, to)
	}
	return out, nil
}

func message(from *jinja.Dict, parts bool) (*jinja.Dict, error) {
	role, _ := member(from, "role").(string)
	if role == "" || role == "developer" {
		return nil, ErrOption
	}
	content, err := contentOf(member(from, "content"), parts && role != "tool")
	if err != nil {
		return nil, err
	}
	to := &jinja.Dict{}
	to.Set("role", role)
	to.Set("content", content)
	switch role {
	case "assistant":
		if err := setCalls(to, member(from, "tool_calls")); err != nil {
			return nil, err
		}
		if thought := member(from, "reasoning"); thought != nil {
			to.Set("reasoning", thought)
			to.Set("reasoning_content", thought)
		} else if member(from, "reasoning_content") != nil {
			return nil, ErrOption // which of the names an engine takes depends on its version
		}
	case "tool":
		if id, ok := from.Get("tool_call_id"); ok {
			to.Set("tool_call_id", id)
		}
	}
	if name, ok := member(from, "name").(string); ok {
		to.Set("name", name)
	}
	if member(from, "task") != nil {
		return nil, ErrOption
	}
	return to, nil
}

func member(d *jinja.Dict, name string) jinja.Value {
	v, _ := d.Get(name)
	return v
}

// contentOf is a message's content as parts, or as one text with a line for each.
func contentOf(v jinja.Value, parts bool) (jinja.Value, error) {
	var texts []string
	switch v := v.(type) {
	case nil:
	case string:
		texts = []string{v}
	case *jinja.List:
		for _, part := range v.Items {
			text, ok, err := partText(part)
			if err != nil {
				return nil, err
			}
			if ok {
				texts = append(texts, text)
			}
		}
	default:
		return nil, ErrBody
	}
	if !parts {
		return strings.Join(texts, "\n"), nil
	}
	out := &jinja.List{}
	for _, text := range texts {
		part := &jinja.Dict{}
		part.Set("type", "text")
		part.Set("text", text)
		out.Items = append(out.Items, part)
	}
	return out, nil
}

// partText is the text of a part of a content; false where it has none.
func partText(v jinja.Value) (text string, ok bool, err error) {
	switch v := v.(type) {
	case string:
		return v, true, nil
	case *jinja.Dict:
		key, _ := member(v, "type").(string)
		switch key {
		case "input_text", "output_text":
			key = "text"
		case "text", "refusal":
		default:
			return "", false, ErrMedia
		}
		if member(v, key) == nil {
			return "", false, nil
		}
		if text, ok = member(v, key).(string); ok {
			return text, true, nil
		}
	}
	return "", false, ErrBody
}

// setCalls gives an assistant's message its tool calls, whose arguments become values.
func setCalls(to *jinja.Dict, v jinja.Value) error {
	calls, ok := v.(*jinja.List)
	if !ok && v != nil {
		return ErrBody
	}
	if v == nil || len(calls.Items) == 0 {
		return nil
	}
	out := &jinja.List{}
	for _, item := range calls.Items {
		call, _ := item.(*jinja.Dict)
		if call == nil {
			return ErrBody
		}
		function, _ := member(call, "function").(*jinja.Dict)
		if function == nil || function.Len() != 2 || member(function, "name") == nil || member(call, "id") == nil || call.Len() > 3 {
			return ErrOption
		}
		arguments, err := argumentsOf(member(function, "arguments"))
		if err != nil {
			return err
		}
		f, c := &jinja.Dict{}, &jinja.Dict{}
		f.Set("arguments", arguments)
		f.Set("name", member(function, "name"))
		c.Set("id", member(call, "id"))
		c.Set("function", f)
		c.Set("type", "function")
		out.Items = append(out.Items, c)
	}
	to.Set("tool_calls", out)
	return nil
}

// argumentsOf reads the arguments of a call, which are JSON; what is none is an empty object.
func argumentsOf(v jinja.Value) (jinja.Value, error) {
	text, ok := v.(string)
	if !ok {
		return nil, ErrOption
	}
	c := jsonscan.New([]byte(text))
	value, err := jinja.Read(&c)
	if err != nil && c.Err() == nil {
		return nil, err // a number that is not kept
	}
	if c.End(); c.Err() != nil {
		return &jinja.Dict{}, nil
	}
	return value, nil
}

// toolsOf is the list of tools as the template gets it, nil for none.
func toolsOf(v jinja.Value) (*jinja.List, error) {
	list, ok := v.(*jinja.List)
	if v == nil || ok && len(list.Items) == 0 {
		return nil, nil
	}
	if !ok {
		return nil, ErrBody
	}
	out := &jinja.List{}
	for _, item := range list.Items {
		tool, _ := item.(*jinja.Dict)
		if tool == nil {
			return nil, ErrBody
		}
		function, _ := member(tool, "function").(*jinja.Dict)
		if function == nil || tool.Len() > 2 {
			return nil, ErrOption
		}
		f, t := &jinja.Dict{}, &jinja.Dict{}
		for _, name := range []string{"name", "description", "parameters"} {
			f.Set(name, member(function, name))
		}
		for i := range function.Len() {
			switch name, value := function.Member(i); {
			case name == "name", name == "description", name == "parameters":
			case name != "strict":
				return nil, ErrOption // engines differ in what else they keep
			case value != nil:
				f.Set(name, value)
			}
		}
		t.Set("type", "function")
		t.Set("function", f)
		out.Items = append(out.Items, t)
	}
	return out, nil
}

// openEnd marks the end of the last message, which the model is to go on with, as transformers does.
const openEnd = "CONTINUE_FINAL_MESSAGE_TAG "

// leaveOpen puts the mark behind the last message's text.
func leaveOpen(messages *jinja.List) error {
	last := messages.Items[len(messages.Items)-1].(*jinja.Dict)
	key := "content"
	if parts, ok := member(last, key).(*jinja.List); ok && len(parts.Items) > 0 {
		last, key = parts.Items[len(parts.Items)-1].(*jinja.Dict), "text"
	}
	text, ok := member(last, key).(string)
	if !ok || text == "" || strings.TrimSpace(text) != text {
		return ErrOption // versions of transformers differ
	}
	last.Set(key, text+openEnd)
	return nil
}

// cutOpen ends the prompt where the mark is.
func cutOpen(prompt string) (string, error) {
	at := strings.LastIndex(prompt, strings.TrimSpace(openEnd))
	if at < 0 {
		return "", ErrOption
	}
	return prompt[:at], nil
}

// turn is what tells conversations apart: their texts up to the end of the first user turn.
func turn(messages *jinja.List) string {
	var b strings.Builder
	for _, item := range messages.Items {
		m := item.(*jinja.Dict)
		b.WriteByte(0)
		switch c := member(m, "content").(type) {
		case string:
			b.WriteString(c)
		case *jinja.List:
			for _, part := range c.Items {
				text, _ := member(part.(*jinja.Dict), "text").(string)
				b.WriteString(text)
			}
		}
		if member(m, "role") == jinja.Value("user") {
			break
		}
	}
	return b.String()
}
