package tokens

import (
	"errors"

	"github.com/cognitora/dataplane/internal/jinja"
	"github.com/cognitora/dataplane/internal/jsonscan"
)

// What stands in the way of a prompt's exact ids.
var (
	ErrMedia    = errors.New("it has more than text")
	ErrOption   = errors.New("it has an option whose effect on the prompt is not known")
	ErrTemplate = errors.New("the model has no chat template")
	ErrBody     = errors.New("it is not what the API takes")
)

// request is what a body says about its prompt. Values are nil where they are absent or null.
type request struct {
	messages, tools, toolChoice, documents, options, prompt, effort jinja.Value

	generate, goOn, special *bool
}

// strange are members that change the prompt in ways that are not followed.
var strange = map[string]bool{
	"chat_template": true, "truncate_prompt_tokens": true, "prompt_embeds": true, "mm_processor_kwargs": true, "suffix": true, "functions": true, "function_call": true,
}

// readRequest reads a body.
func readRequest(body []byte) (r request, err error) {
	c := jsonscan.New(body)
	if c.Kind() != jsonscan.Object {
		return r, ErrBody
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		key := string(c.Key())
		if c.Kind() == jsonscan.Null {
			c.Literal()
			continue
		}
		if strange[key] {
			return r, ErrOption
		}
		if err := r.member(&c, key); err != nil {
			return r, err
		}
	}
	return r, c.Err()
}

func (r *request) member(c *jsonscan.Cursor, key string) (err error) {
	values := map[string]*jinja.Value{
		"messages": &r.messages, "tools": &r.tools, "tool_choice": &r.toolChoice, "documents": &r.documents, "chat_template_kwargs": &r.options,
		"prompt": &r.prompt, "reasoning_effort": &r.effort,
	}
	flags := map[string]**bool{"add_generation_prompt": &r.generate, "continue_final_message": &r.goOn, "add_special_tokens": &r.special}
	if v := values[key]; v != nil {
		*v, err = jinja.Read(c)
		return err
	}
	if f := flags[key]; f == nil {
		c.Skip()
	} else if c.Kind() != jsonscan.Bool {
		return ErrBody
	} else {
		set := c.Literal()
		*f = &set
	}
	return nil
}

func or(flag *bool, other bool) bool {
	if flag == nil {
		return other
	}
	return *flag
}

// Prompt is a prompt as the engine's tokenizer gets it.
type Prompt struct {
	Text    string
	Special bool   // with the tokens that the model puts before and behind it
	Turn    string // what the conversation begins with: all up to the end of the first user turn; empty for a completion
}

// Completion makes the prompt of a body of /v1/completions.
func (m *Model) Completion(body []byte) (p Prompt, err error) {
	r, err := readRequest(body)
	if err != nil {
		return p, err
	}
	if l, ok := r.prompt.(*jinja.List); ok && len(l.Items) == 1 {
		r.prompt = l.Items[0]
	}
	text, ok := r.prompt.(string)
	if !ok {
		return p, ErrBody // several prompts, or token ids
	}
	return Prompt{Text: text, Special: or(r.special, true)}, nil
}
