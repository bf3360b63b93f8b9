package resume

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// span is a half-open range of bytes of a chunk. The zero span means absent.
type span struct{ from, to int }

func (s span) of(data []byte) []byte { return data[s.from:s.to] }

// chunk is what one event of a stream says: a chunk of the API chat or completions with at most one
// choice. The spans are those of JSON values, with the quotes of a string.
type chunk struct {
	choices int  // offset of the name of the member choices; what comes before is the head
	clean   bool // the head has only strings, numbers and nulls
	named   bool // the head has id, object, created and model, and nothing behind choices has
	empty   bool // choices has no element
	foreign bool // choices has several elements, or one with another index than 0

	text       span // content of the delta, or text of a completion; a string
	role       span // name and value of the delta's member role
	finish     span // value of finish_reason, if present
	stopReason span // value of stop_reason, if present
	ids        span // value of token_ids, if present
	promptIDs  span // value of prompt_token_ids, if present
	usage      span // value of usage, if it is an object

	roleComma int  // offset behind the comma after role; 0: there is none
	finished  bool // finish_reason is a string
	reasoning bool // the delta has text of a reasoning section
	tool      bool // the delta has a part of a tool call, or another member that is no text
	logprobs  bool // logprobs is not null
	listed    bool // token_ids is a list
}

// read reads data, the data of an event. read returns false if it is no chunk. The chunk's memory
// is reused: read does not allocate.
func (c *chunk) read(data []byte) bool {
	*c = chunk{clean: true}
	cur := jsonscan.New(data)
	if cur.Kind() != jsonscan.Object {
		return false
	}
	names, late := 0, false
	for ok := cur.Object(); ok; ok = cur.NextMember() {
		cur.Kind()
		at := cur.Pos()
		key := cur.Key()
		if name := nameOf(key); c.choices == 0 {
			names |= name
		} else {
			late = late || name > 0
		}
		switch string(key) {
		case "choices":
			if c.choices > 0 || cur.Kind() != jsonscan.Array {
				return false
			}
			c.choices = at
			c.readChoices(&cur, data)
		case "prompt_token_ids":
			c.promptIDs = list(&cur, data)
		case "usage":
			if cur.Kind() == jsonscan.Object {
				c.usage = value(&cur)
			} else {
				cur.Skip()
			}
			c.clean = c.clean && c.choices > 0
		default:
			if k := cur.Kind(); c.choices == 0 && (k == jsonscan.Object || k == jsonscan.Array) {
				c.clean = false
			}
			cur.Skip()
		}
	}
	cur.End()
	c.named = names == allNames && !late
	return !cur.Failed() && c.choices > 0
}

// allNames are the bits of nameOf for all members that name a stream.
const allNames = 1<<4 - 1

// nameOf returns the bit of a member that names the stream in each of its chunks, or 0.
func nameOf(key []byte) int {
	switch string(key) {
	case "id":
		return 1
	case "object":
		return 2
	case "created":
		return 4
	case "model":
		return 8
	}
	return 0
}

// value passes over the next value and returns its place.
func value(cur *jsonscan.Cursor) span {
	cur.Kind()
	from := cur.Pos()
	cur.Skip()
	return span{from, cur.Pos()}
}

// list is value for a list of ids, which may be long. list does not look at the ids: addIDs does.
func list(cur *jsonscan.Cursor, data []byte) span {
	if cur.Kind() != jsonscan.Array {
		return value(cur)
	}
	from := cur.Pos()
	end := bytes.IndexByte(data[from:], ']')
	if end < 0 {
		return value(cur) // which fails
	}
	to := from + end + 1
	cur.Resume(data, to, cur.Depth())
	return span{from, to}
}

func (c *chunk) readChoices(cur *jsonscan.Cursor, data []byte) {
	c.empty = true
	for ok := cur.Array(); ok; ok = cur.NextElement() {
		if !c.empty || cur.Kind() != jsonscan.Object {
			c.foreign = true
			cur.Skip()
			continue
		}
		c.empty = false
		c.readChoice(cur, data)
	}
}

func (c *chunk) readChoice(cur *jsonscan.Cursor, data []byte) {
	for ok := cur.Object(); ok; ok = cur.NextMember() {
		switch string(cur.Key()) {
		case "index":
			if n, ok := number(cur); !ok || n != 0 {
				c.foreign = true
			}
		case "delta":
			c.readDelta(cur)
		case "text":
			c.text = text(cur)
		case "finish_reason":
			c.finished = cur.Kind() == jsonscan.String
			c.finish = value(cur)
		case "stop_reason":
			c.stopReason = value(cur)
		case "token_ids":
			c.listed = cur.Kind() == jsonscan.Array
			c.ids = value(cur)
		case "prompt_token_ids":
			c.promptIDs = list(cur, data)
		case "logprobs":
			c.logprobs = cur.Kind() != jsonscan.Null
			cur.Skip()
		default:
			cur.Skip()
		}
	}
}

func (c *chunk) readDelta(cur *jsonscan.Cursor) {
	if cur.Kind() != jsonscan.Object {
		c.foreign = cur.Kind() != jsonscan.Null
		cur.Skip()
		return
	}
	roleEnd := 0
	for ok := cur.Object(); ok; ok = cur.NextMember() {
		cur.Kind()
		at := cur.Pos()
		if roleEnd > 0 && c.roleComma == 0 {
			c.roleComma = at
		}
		switch key := cur.Key(); string(key) {
		case "content":
			c.text = text(cur)
		case "role":
			v := value(cur)
			c.role, roleEnd = span{at, v.to}, v.to
		case "reasoning", "reasoning_content":
			c.reasoning = c.reasoning || says(cur)
		default:
			c.tool = c.tool || says(cur)
		}
	}
}

// text reads a string, or another value, which is no text.
func text(cur *jsonscan.Cursor) span {
	if cur.Kind() != jsonscan.String {
		cur.Skip()
		return span{}
	}
	return value(cur)
}

// says passes over the next value, and reports whether it is more than null, "" or [].
func says(cur *jsonscan.Cursor) bool {
	kind := cur.Kind()
	v := value(cur)
	return kind != jsonscan.Null && v.to-v.from > len(`""`)
}

func number(cur *jsonscan.Cursor) (int64, bool) {
	if cur.Kind() != jsonscan.Number {
		cur.Skip()
		return 0, false
	}
	return cur.Int()
}

// visible says whether the client sees something of the answer in the chunk.
func (c *chunk) visible() bool {
	return c.text.to-c.text.from > len(`""`) || c.reasoning || c.tool || c.finished
}

// blank says whether the engine sends the chunk for the token ids only.
func (c *chunk) blank() bool {
	return c.listed && c.text == (span{}) && c.role == (span{}) && !c.logprobs && !c.visible() && c.usage == (span{})
}
