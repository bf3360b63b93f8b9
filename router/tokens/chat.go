package tokens

import (
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/internal/jinja"
)

// talk is a chat read from a body of any API, with messages in the form of /v1/chat/completions.
type talk struct {
	messages  jinja.List
	tools     *jinja.List // as passed to the template, nil for none
	documents jinja.Value
	options   jinja.Value // chat_template_kwargs
	effort    string      // reasoning effort, empty for none

	generate, goOn, special bool
	asWritten               bool // members of tool calls keep the order of the body
}

func (t *talk) say(message *jinja.Dict) { t.messages.Items = append(t.messages.Items, message) }

// readChat reads a body of /v1/chat/completions.
func readChat(body []byte) (*talk, error) {
	r, err := read(body, []string{"messages", "tools", "documents", "chat_template_kwargs", "reasoning_effort",
		"add_generation_prompt", "continue_final_message", "add_special_tokens"},
		[]string{"chat_template", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs", "functions",
			"function_call"})
	if err != nil {
		return nil, err
	}
	t := &talk{documents: member(r, "documents"), options: member(r, "chat_template_kwargs")}
	messages, err := list(r, "messages")
	if err != nil || messages == nil {
		return nil, ErrBody
	}
	t.messages = *messages
	if t.tools, err = toolsOf(member(r, "tools")); err != nil {
		return nil, err
	}
	if t.effort, err = text(r, "reasoning_effort"); err != nil {
		return nil, err
	}
	for _, f := range []struct {
		name   string
		to     *bool
		absent bool
	}{{"add_generation_prompt", &t.generate, true}, {"continue_final_message", &t.goOn, false}, {"add_special_tokens",
		&t.special, false}} {
		if *f.to, err = typed(r, f.name, f.absent); err != nil {
			return nil, err
		}
	}
	if t.goOn && t.generate {
		return nil, ErrBody // the engine refuses both
	}
	return t, nil
}

// chatPrompt renders a chat. most bounds the bytes of the prompt.
func (m *Model) chatPrompt(t *talk, most int) (p Prompt, err error) {
	template := m.chat
	if t.tools != nil && m.tools != nil {
		template = m.tools
	}
	if template == nil {
		return p, ErrTemplate
	}
	messages, err := t.conversation(template.parts)
	if err != nil {
		return p, err
	}
	p.Turn, p.Special = turn(messages), t.special
	if t.goOn {
		if err := leaveOpen(messages); err != nil {
			return p, err
		}
	}
	variables, err := m.variables(t, messages)
	if err != nil {
		return p, err
	}
	if p.Text, err = template.Render(variables, jinja.Limits{Bytes: most, Steps: most + 100_000}); err != nil {
		return p, err
	}
	if t.goOn {
		p.Text, err = cutOpen(p.Text)
	}
	return p, err
}

func (m *Model) variables(t *talk, messages *jinja.List) (*jinja.Dict, error) {
	v := &jinja.Dict{}
	for i := range m.specials.Len() {
		v.Set(m.specials.Member(i))
	}
	v.Set("messages", messages)
	v.Set("tools", nil)
	if t.tools != nil {
		v.Set("tools", t.tools)
	}
	v.Set("documents", t.documents)
	v.Set("add_generation_prompt", t.generate)
	if t.effort != "" {
		v.Set("enable_thinking", t.effort != "none")
	}
	if t.options != nil {
		if err := setOptions(v, t.options); err != nil {
			return nil, err
		}
	}
	if t.effort != "" {
		v.Set("reasoning_effort", t.effort)
	}
	return v, nil
}

// setOptions adds the variables of chat_template_kwargs.
func setOptions(v *jinja.Dict, given jinja.Value) error {
	options, ok := given.(*jinja.Dict)
	if !ok {
		return ErrBody
	}
	for i := range options.Len() {
		key, value := options.Member(i)
		switch key {
		case "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template",
			"conversation", "tokenize",
			"padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask",
			"tokenizer_kwargs":
			return ErrOption
		}
		if value == nil || value == jinja.Value("auto") {
			return ErrOption // some versions of an API drop this option
		}
		v.Set(key, value)
	}
	return nil
}

// conversation returns the messages for the template: the relevant members in a fixed order.
func (t *talk) conversation(parts bool) (*jinja.List, error) {
	if len(t.messages.Items) == 0 {
		return nil, ErrBody
	}
	return converted(&t.messages, func(from *jinja.Dict) (*jinja.Dict, error) { return t.message(from, parts) })
}

func (t *talk) message(from *jinja.Dict, parts bool) (*jinja.Dict, error) {
	role, _ := member(from, "role").(string)
	if role == "" || role == "developer" {
		return nil, ErrForm
	}
	content, err := contentOf(member(from, "content"), parts && role != "tool")
	if err != nil {
		return nil, err
	}
	if role == "system" && billed(content) {
		return nil, ErrForm
	}
	to := dict("role", role, "content", content)
	switch role {
	case "assistant":
		if err := t.setCalls(to, member(from, "tool_calls")); err != nil {
			return nil, err
		}
		if thought := member(from, "reasoning"); thought != nil {
			to.Set("reasoning", thought)
			to.Set("reasoning_content", thought)
		} else if member(from, "reasoning_content") != nil {
			return nil, ErrForm // which names an engine accepts depends on its version
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
		return nil, ErrForm
	}
	return to, nil
}

// billed detects Claude Code's header in a system prompt. Versions of vLLM drop the header's line,
// its part or nothing.
func billed(content jinja.Value) bool {
	switch content := content.(type) {
	case string:
		return strings.HasPrefix(content, billing)
	case *jinja.List:
		for _, part := range content.Items {
			if said, _ := member(part.(*jinja.Dict), "text").(string); strings.HasPrefix(said, billing) {
				return true
			}
		}
	}
	return false
}

// contentOf returns a message's content as parts, or as one text with a line for each part.
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
		out.Items = append(out.Items, dict("type", "text", "text", text))
	}
	return out, nil
}

// partText returns the text of a part of a content. ok is false for a part without text.
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

// openEnd marks the end of the last message if the model must continue that message, as in
// transformers.
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

// cutOpen cuts the prompt at the mark.
func cutOpen(prompt string) (string, error) {
	at := strings.LastIndex(prompt, strings.TrimSpace(openEnd))
	if at < 0 {
		return "", ErrOption
	}
	return prompt[:at], nil
}

// turn returns a hash of the texts up to the end of the first user turn. The hash identifies the
// conversation.
func turn(messages *jinja.List) uint64 {
	var h xxhash.Digest
	h.Reset()
	for _, item := range messages.Items {
		m := item.(*jinja.Dict)
		_, _ = h.WriteString("\x00")
		switch c := member(m, "content").(type) {
		case string:
			_, _ = h.WriteString(c)
		case *jinja.List:
			for _, part := range c.Items {
				text, _ := member(part.(*jinja.Dict), "text").(string)
				_, _ = h.WriteString(text)
			}
		}
		if member(m, "role") == jinja.Value("user") {
			break
		}
	}
	return h.Sum64()
}
