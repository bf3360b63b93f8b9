package load

import (
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/cognitora/dataplane/perf/trace"
)

// Chat makes chat requests whose prompts share a given part. Use New.
type Chat struct {
	cfg  ChatConfig
	text []byte // of ASCII words
	head []byte // the body before the prompt
	wish []byte // the prompt's last words
	tail []byte // the body after the prompt
}

// ChatConfig describes requests.
type ChatConfig struct {
	Model string
	// PromptBytes is the length of the prompt in bytes of plain words.
	PromptBytes int
	// Shared is the part of the prompt, in [0,1], that all requests of a document have in common.
	Shared float64
	// Documents is the number of different shared beginnings. Default 1.
	Documents int
	// Stream asks for a stream.
	Stream bool
	// Tokens is max_tokens.
	Tokens int
	// Wish is an instruction for the instant engine in the prompt's last words, in addition to the
	// token counts.
	Wish string
	// Salt makes the prompts differ from those of another Chat with the same fields.
	Salt uint64
}

// stampEvery is the distance between the marks that make a text differ along its whole length.
const stampEvery = 256

// NewChat prepares the text.
func NewChat(cfg ChatConfig) *Chat {
	cfg.Documents = max(cfg.Documents, 1)
	c := &Chat{cfg: cfg}
	c.head = fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":"`, cfg.Model)
	c.wish = fmt.Appendf(nil, " instant: %s ", cfg.Wish)
	c.tail = fmt.Appendf(nil, `"}],"max_tokens":%d`, cfg.Tokens)
	if cfg.Stream {
		c.tail = append(c.tail, `,"stream":true`...)
	}
	c.tail = append(c.tail, '}')
	random := rand.New(rand.NewPCG(cfg.Salt, 1))
	for len(c.text) < cfg.PromptBytes {
		for range 2 + random.IntN(7) {
			c.text = append(c.text, byte('a'+random.IntN(26)))
		}
		c.text = append(c.text, ' ')
	}
	c.text = c.text[:cfg.PromptBytes]
	return c
}

// Append appends the body of request n. Requests with the same n are equal.
func (c *Chat) Append(b []byte, n uint64) []byte {
	b = append(b, c.head...)
	from := len(b)
	b = append(b, c.text...)
	prompt := b[from:]
	shared := int(c.cfg.Shared * float64(len(prompt)))
	c.mark(prompt[:shared], 0, n%uint64(c.cfg.Documents))
	c.mark(prompt[shared:], 1, n)
	b = append(b, c.wish...)
	b = strconv.AppendInt(append(b, "prompt="...), int64(len(prompt)/trace.TokenBytes), 10)
	cached := 0
	if n >= uint64(c.cfg.Documents) { // the first requests send the documents
		cached = shared / trace.TokenBytes / 16 * 16
	}
	b = strconv.AppendInt(append(b, " cached="...), int64(cached), 10)
	return append(b, c.tail...)
}

// mark writes words that follow from id into text.
func (c *Chat) mark(text []byte, kind, id uint64) {
	h := (id + 1) * 0x9e3779b97f4a7c15 // the factor is odd, so different ids below 2^64 give different values
	h ^= c.cfg.Salt*0xbf58476d1ce4e5b9 + kind*0x94d049bb133111eb
	for at := 0; at+17 <= len(text); at += stampEvery {
		v := h
		for i := range 16 {
			text[at+i] = 'a' + byte(v&15)
			v >>= 4
		}
		text[at+16] = ' '
	}
}
