package learned

import "github.com/cognitora/dataplane/internal/jsonscan"

// Answer gathers the text of the answer to a chat or a completion, and the ids of its prompt if the
// engine sends them. An answer with anything but one text, such as a tool call or a second choice,
// has no text here. The zero Answer is empty.
type Answer struct {
	text   []byte
	prompt []uint32
	strict bool // it has more than text, or too much of it
}

// maxAnswer bounds the text of an answer, in bytes.
const maxAnswer = 64 << 10

// Text returns the text, and whether the whole answer is this text.
func (a *Answer) Text() (text []byte, whole bool) { return a.text, !a.strict && len(a.text) > 0 }

// size returns the memory of a in bytes.
func (a *Answer) size() int { return cap(a.text) + 4*cap(a.prompt) }

// Read reads an event's data, or a whole answer that is not a stream.
func (a *Answer) Read(doc []byte) {
	c := jsonscan.New(doc)
	if a.strict || c.Kind() != jsonscan.Object {
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		key := c.Key()
		switch list := c.Kind() == jsonscan.Array; {
		case list && string(key) == "choices":
			a.choices(&c)
		case list && string(key) == "prompt_token_ids" && a.prompt == nil:
			a.prompt, _ = idsAt(&c)
		default:
			c.Skip()
		}
	}
	a.strict = a.strict || c.Failed()
}

func (a *Answer) choices(c *jsonscan.Cursor) {
	first := true
	for ok := c.Array(); ok; ok = c.NextElement() {
		if !first || c.Kind() != jsonscan.Object {
			a.strict = true
			c.Skip()
			continue
		}
		first = false
		a.choice(c)
	}
}

func (a *Answer) choice(c *jsonscan.Cursor) {
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "index":
			if c.Kind() != jsonscan.Number {
				c.Skip()
			} else if n, ok := c.Int(); !ok || n != 0 {
				a.strict = true
			}
		case "delta", "message":
			a.message(c)
		case "text":
			a.say(c)
		case "prompt_token_ids": // of a completion
			if c.Kind() != jsonscan.Array || a.prompt != nil {
				c.Skip()
			} else {
				a.prompt, _ = idsAt(c)
			}
		default:
			c.Skip()
		}
	}
}

func (a *Answer) message(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.Object {
		c.Skip()
		return
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		switch string(c.Key()) {
		case "content":
			a.say(c)
		case "tool_calls", "function_call", "refusal", "audio":
			kind, from := c.Kind(), c.Pos()
			c.Skip()
			a.strict = a.strict || kind != jsonscan.Null && c.Pos()-from > len(`[]`)
		default:
			c.Skip()
		}
	}
}

// say adds a piece of the text.
func (a *Answer) say(c *jsonscan.Cursor) {
	if c.Kind() != jsonscan.String {
		c.Skip()
		return
	}
	if a.text = c.AppendString(a.text); len(a.text) > maxAnswer {
		a.strict, a.text = true, nil
	}
}
