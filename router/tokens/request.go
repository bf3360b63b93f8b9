package tokens

import (
	"errors"
	"slices"

	"github.com/cognitora/dataplane/internal/jinja"
	"github.com/cognitora/dataplane/internal/jsonscan"
)

// These errors say why a prompt has no exact ids.
var (
	ErrMedia    = errors.New("it has more than text")
	ErrForm     = errors.New("it has a form of content that engines differ in")
	ErrOption   = errors.New("it has an option whose effect on the prompt is not known")
	ErrTemplate = errors.New("the model has no chat template, or the engine does not use it")
	ErrBody     = errors.New("it is not what the API takes")
)

// API is the form in which a body gives its prompt.
type API uint8

// These are the forms.
const (
	Completions API = iota
	Chat
	Responses
	Messages // Anthropic's API
)

// Prompt is the input of the engine's tokenizer.
type Prompt struct {
	Text    string
	Special bool // the model's tokens stand before and behind the text
	// hash of the beginning of the conversation up to the end of the first user turn; 0 for a
	// completion
	Turn uint64
}

// Prompt makes the prompt of a body as vLLM does. most bounds the bytes of the prompt.
func (m *Model) Prompt(api API, body []byte, most int) (Prompt, error) {
	if api == Completions {
		return completion(body)
	}
	t, err := chats[api](body)
	if err != nil {
		return Prompt{}, err
	}
	return m.chatPrompt(t, most)
}

// chats read the bodies of the APIs that have a conversation.
var chats = [...]func(body []byte) (*talk, error){Chat: readChat, Responses: readResponses, Messages: readMessages}

// read returns the wanted members of a body that are not null. read fails at a member that changes
// the prompt in an unsupported way.
func read(body []byte, wanted, strange []string) (*jinja.Dict, error) {
	c := jsonscan.New(body)
	if c.Kind() != jsonscan.Object {
		return nil, ErrBody
	}
	out := &jinja.Dict{}
	for ok := c.Object(); ok; ok = c.NextMember() {
		key := string(c.Key())
		switch {
		case c.Kind() == jsonscan.Null:
			c.Literal()
		case slices.Contains(wanted, key):
			v, err := jinja.Read(&c)
			if err != nil {
				return nil, err
			}
			out.Set(key, v)
		case slices.Contains(strange, key):
			return nil, ErrOption
		default:
			c.Skip()
		}
	}
	return out, c.Err()
}

// member returns a member, or nil.
func member(d *jinja.Dict, name string) jinja.Value {
	v, _ := d.Get(name)
	return v
}

// typed returns a member of the type T, or absent if there is none.
func typed[T any](d *jinja.Dict, name string, absent T) (T, error) {
	switch v := member(d, name).(type) {
	case nil:
		return absent, nil
	case T:
		return v, nil
	}
	return absent, ErrBody
}

// text returns a member that is a string, or "" if it is absent.
func text(d *jinja.Dict, name string) (string, error) { return typed(d, name, "") }

// list returns a member that is a list, or nil if it is absent.
func list(d *jinja.Dict, name string) (*jinja.List, error) { return typed[*jinja.List](d, name, nil) }

// each calls do with the items of a list, which must be objects, until do fails.
func each(l *jinja.List, do func(*jinja.Dict) error) error {
	for _, item := range l.Items {
		d, ok := item.(*jinja.Dict)
		if !ok {
			return ErrBody
		}
		if err := do(d); err != nil {
			return err
		}
	}
	return nil
}

// converted returns the results of convert for the objects of a list.
func converted(l *jinja.List, convert func(*jinja.Dict) (*jinja.Dict, error)) (*jinja.List, error) {
	out := &jinja.List{Items: make([]jinja.Value, 0, len(l.Items))}
	err := each(l, func(from *jinja.Dict) error {
		to, err := convert(from)
		out.Items = append(out.Items, to)
		return err
	})
	return out, err
}

// dict makes an object from alternating names and values.
func dict(members ...any) *jinja.Dict {
	d := &jinja.Dict{}
	for i := 0; i < len(members); i += 2 {
		d.Set(members[i].(string), members[i+1])
	}
	return d
}

// completion makes the prompt of a body of /v1/completions.
func completion(body []byte) (p Prompt, err error) {
	r, err := read(body, []string{"prompt", "add_special_tokens"}, []string{"truncate_prompt_tokens", "prompt_embeds",
		"suffix"})
	if err != nil {
		return p, err
	}
	prompt := member(r, "prompt")
	if l, ok := prompt.(*jinja.List); ok && len(l.Items) == 1 {
		prompt = l.Items[0]
	}
	var ok bool
	if p.Text, ok = prompt.(string); !ok {
		return p, ErrBody // several prompts, or token ids
	}
	p.Special, err = typed(r, "add_special_tokens", true)
	return p, err
}
