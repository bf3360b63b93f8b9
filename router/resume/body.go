package resume

import (
	"bytes"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// Continuation is the body of the request that goes on with a stream: edits of the client's body,
// in memory that is used again.
type Continuation struct {
	name     string // of the member with the delivered tokens; "": there is none
	value    []byte // of that member
	held     int    // bytes of value that the stream has reserved
	max, min []byte
}

var (
	yes = []byte("true")
	no  = []byte("false")
)

// defaultCompletion is the length of a completion without max_tokens.
const defaultCompletion = 16

// Make makes the member with the delivered tokens for the leg that Cross has begun. r is the scan
// of body. Make returns false if there is no room for it. Nothing can go on with the stream then.
func (c *Continuation) Make(s *Stream, r *scan.Request, body []byte) bool {
	c.name = ""
	var start []byte
	var middle, end string
	switch {
	case s.by == IDs && s.API == scan.Chat:
		c.name, middle, end = "kv_transfer_params", `{"prompt_token_ids":`, "}"
	case s.by == IDs:
		c.name = "prompt"
	case s.by == Text && s.API == scan.Completions:
		p := r.Find(body, "prompt")
		if len(p) < 2 || p[0] != '"' {
			return true
		}
		c.name, start, end = "prompt", p[:len(p)-1], `"`
	case s.by == Text:
		list := r.Find(body, "messages")
		at := bytes.LastIndexByte(list, ']')
		if at < 0 {
			return true
		}
		c.name, start, middle, end = "messages", list[:at], `,{"role":"assistant","content":"`, `"}]`
	default:
		return true
	}
	size := len(start) + len(middle) + len(end)
	if s.by == IDs {
		size += listSize(s.ids)
	} else {
		size += len(s.text)
	}
	if !c.grow(s, size) {
		return false
	}
	c.value = append(append(c.value, start...), middle...)
	if s.by == IDs {
		c.value = appendIDs(c.value, s.ids)
	} else {
		c.value = append(c.value, s.text...)
	}
	c.value = append(c.value, end...)
	return true
}

// grow empties value and makes it hold size bytes, which s reserves. The next leg's value takes the
// place of this one.
func (c *Continuation) grow(s *Stream, size int) bool {
	need := max(size, cap(c.value))
	if need > c.held && !s.reserve(need-c.held) {
		return false
	}
	c.held = max(c.held, need)
	if c.value = c.value[:0]; cap(c.value) < size {
		c.value = make([]byte, 0, size)
	}
	return true
}

// Edit edits the client's body for the engine that goes on with s by the way that Cross was given.
// Make must have made the member with the delivered tokens. r is the scan of body. The memory of c
// is borrowed until the edits are reset.
func (c *Continuation) Edit(s *Stream, e *scan.Edits, r *scan.Request, body []byte, ids bool) {
	if ids {
		e.Set("return_token_ids", yes)
	}
	if s.by != IDs && s.by != Text {
		return
	}
	if c.name != "" {
		e.Set(c.name, c.value)
	}
	if s.by == Text && s.API != scan.Completions {
		e.Set("continue_final_message", yes)
		e.Set("add_generation_prompt", no)
	}
	c.limits(s, e, r, body)
}

// listSize returns the number of bytes that appendIDs appends.
func listSize(ids []uint32) int {
	n := len("[]") + max(len(ids)-1, 0)
	for _, id := range ids {
		for n++; id > 9; id /= 10 {
			n++
		}
	}
	return n
}

func appendIDs(b []byte, ids []uint32) []byte {
	b = append(b, '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(id), 10)
	}
	return append(b, ']')
}

// limits takes the delivered tokens off the limits on the answer.
func (c *Continuation) limits(s *Stream, e *scan.Edits, r *scan.Request, body []byte) {
	had := s.delivered
	c.max, c.min = c.max[:0], c.min[:0]
	limited := false
	for _, name := range [...]string{"max_tokens", "max_completion_tokens"} {
		n, ok := wholeNumber(r.Find(body, name))
		if !ok {
			continue
		}
		limited = true
		start := len(c.max)
		c.max = strconv.AppendInt(c.max, max(n-had, 1), 10)
		e.Set(name, c.max[start:len(c.max):len(c.max)])
	}
	if !limited && s.API == scan.Completions {
		c.max = strconv.AppendInt(c.max, max(defaultCompletion-had, 1), 10)
		e.Set("max_tokens", c.max)
	}
	if n, ok := wholeNumber(r.Find(body, "min_tokens")); ok {
		c.min = strconv.AppendInt(c.min, max(n-had, 0), 10)
		e.Set("min_tokens", c.min)
	}
}

func wholeNumber(value []byte) (n int64, ok bool) {
	if len(value) == 0 || value[0] != '-' && value[0]-'0' > 9 {
		return 0, false
	}
	return jsonscan.Int(value)
}

// Left says whether the limits of the request leave a token after the delivered ones.
func (s *Stream) Left(r *scan.Request, body []byte) bool {
	most := int64(-1)
	for _, name := range [...]string{"max_tokens", "max_completion_tokens"} {
		if n, ok := wholeNumber(r.Find(body, name)); ok {
			most = n
		}
	}
	if most < 0 && s.API == scan.Completions {
		most = defaultCompletion
	}
	return most < 0 || s.Kept() < most
}

// Reset forgets the member, whose room Stream.Reset gives back, and drops memory that is too large
// to be kept.
func (c *Continuation) Reset() {
	c.name, c.held, c.value = "", 0, small(c.value, 1)
}
