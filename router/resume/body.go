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
	value    []byte
	max, min []byte
}

var (
	yes  = []byte("true")
	no   = []byte("false")
	half = []byte(`{"prompt_token_ids":`)
)

// defaultCompletion is the length of a completion without max_tokens.
const defaultCompletion = 16

// Edit edits the client's body for the engine that goes on with s by the way that Seam has chosen.
// r is the scan of body. The memory of c is borrowed until the edits are reset.
func (c *Continuation) Edit(s *Stream, e *scan.Edits, r *scan.Request, body []byte, ids bool) {
	if ids {
		e.Set("return_token_ids", yes)
	}
	switch s.by {
	case IDs:
		c.byIDs(s, e)
	case Text:
		c.byText(s, e, r, body)
	default:
		return
	}
	c.limits(s, e, r, body)
}

func (c *Continuation) byIDs(s *Stream, e *scan.Edits) {
	c.value = c.value[:0]
	if s.API == scan.Chat {
		c.value = append(c.value, half...)
	}
	c.value = appendIDs(c.value, s.ids)
	if s.API == scan.Chat {
		c.value = append(c.value, '}')
		e.Set("kv_transfer_params", c.value)
		return
	}
	e.Set("prompt", c.value)
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

func (c *Continuation) byText(s *Stream, e *scan.Edits, r *scan.Request, body []byte) {
	if s.API == scan.Completions {
		if p := r.Find(body, "prompt"); len(p) > 1 && p[0] == '"' {
			c.value = append(append(append(c.value[:0], p[:len(p)-1]...), s.text...), '"')
			e.Set("prompt", c.value)
		}
		return
	}
	list := r.Find(body, "messages")
	end := bytes.LastIndexByte(list, ']')
	if end < 0 {
		return
	}
	c.value = append(append(c.value[:0], list[:end]...), `,{"role":"assistant","content":"`...)
	c.value = append(append(c.value, s.text...), `"}]`...)
	e.Set("messages", c.value)
	e.Set("continue_final_message", yes)
	e.Set("add_generation_prompt", no)
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

// Reset drops memory that is too large to be kept.
func (c *Continuation) Reset() {
	if cap(c.value) > keptSize {
		c.value = nil
	}
}
