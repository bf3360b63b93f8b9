// Package logprobs reads and removes the log-probabilities of tokens in the answers of OpenAI's
// APIs for chats and completions. The package measures how confident a model was of its answer.
//
// Only the tokens of the content count. Tokens of a reasoning section and of the chat template do
// not count. Engines' bytes are not trusted: a document that is no JSON counts for nothing.
package logprobs

import (
	"bytes"
	"math"
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

const (
	// MaxTokens bounds the tokens of an answer that count. Further ones are ignored.
	MaxTokens = 1 << 16
	// Least is the lowest log-probability that counts. vLLM gives -9999 to a token that has none.
	Least = -100

	maxNumber = 64 // bytes of a number
)

// Measure makes one number of the log-probabilities of an answer's tokens.
type Measure struct {
	// Quantile says that the measure is a quantile. Otherwise it is the mean.
	Quantile bool
	// Q is the quantile, in 0..1. 0 is the least likely token.
	Q float64
}

// Of returns the measure of values, and false if there are none. Of may change the order of values.
func (m Measure) Of(values []float64) (v float64, ok bool) {
	if len(values) == 0 {
		return 0, false
	}
	if !m.Quantile {
		sum := 0.0
		for _, v := range values {
			sum += v
		}
		return sum / float64(len(values)), true
	}
	slices.Sort(values)
	at := m.Q * float64(len(values)-1)
	low := min(max(int(at), 0), len(values)-1)
	high := min(low+1, len(values)-1)
	return values[low] + (at-float64(low))*(values[high]-values[low]), true
}

// Answer collects the log-probabilities of an answer's content tokens, in their order. The zero
// Answer is empty. An Answer is not safe for concurrent use.
type Answer struct {
	values  []float64
	several bool
	// choice is the first choice of the last document, and other one of its further choices.
	choice, other choice
}

// Reset empties a. Reset keeps memory.
func (a *Answer) Reset() {
	a.values, a.several = a.values[:0], false
}

// Tokens returns the number of content tokens with a log-probability.
func (a *Answer) Tokens() int { return len(a.values) }

// Several says whether the answer has more than one choice. Only the first choice counts.
func (a *Answer) Several() bool { return a.several }

// Confidence returns the measure of the first tokens; first 0: of all tokens. ok is false if there
// are none.
func (a *Answer) Confidence(m Measure, first int) (v float64, ok bool) {
	if first <= 0 || first > len(a.values) {
		first = len(a.values)
	}
	values := a.values[:first]
	if m.Quantile {
		values = slices.Clone(values)
	}
	return m.Of(values)
}

// Event reads the data of one event of a stream. A piece without text counts for nothing, because
// its tokens are of the reasoning section or of the template.
func (a *Answer) Event(data []byte) {
	a.read(data, func(c *choice) []float64 {
		if len(c.text) == 0 {
			return nil
		}
		return c.values
	})
}

// Document reads a whole answer. A whole answer does not say which tokens are of the content.
// Document finds these tokens by their text. If the text of the tokens is not that of the content,
// all tokens count, but none in an answer with a reasoning section.
func (a *Answer) Document(doc []byte) { a.read(doc, (*choice).content) }

// read reads one document, and adds the tokens that count says.
func (a *Answer) read(doc []byte, count func(*choice) []float64) {
	c := jsonscan.New(doc)
	if c.Kind() != jsonscan.Object {
		return
	}
	several := false
	a.choice.reset()
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) != "choices" || c.Kind() != jsonscan.Array {
			c.Skip()
			continue
		}
		for ok := c.Array(); ok; ok = c.NextElement() {
			a.other.reset()
			if a.other.read(&c); a.other.index == 0 {
				a.choice, a.other = a.other, a.choice
			} else {
				several = true
			}
		}
	}
	if c.End(); c.Failed() {
		return
	}
	a.several = a.several || several
	values := count(&a.choice)
	a.values = append(a.values, values[:min(len(values), MaxTokens-len(a.values))]...)
}

// choice is one choice of a document.
type choice struct {
	index     int64
	text      []byte // decoded
	reasoning bool
	values    []float64
	spoken    []byte // the texts of the tokens
	ends      []int  // of each token's text in spoken
}

// reset empties the choice. reset keeps memory of moderate size.
func (c *choice) reset() {
	*c = choice{text: c.text[:0], values: c.values[:0], spoken: c.spoken[:0], ends: c.ends[:0]}
	if cap(c.text)+cap(c.spoken) > 1<<20 {
		c.text, c.spoken = nil, nil
	}
}

// content returns the values of the tokens that make up the text.
func (c *choice) content() []float64 {
	at := -1
	if len(c.ends) == len(c.values) && len(c.text) > 0 {
		at = bytes.LastIndex(c.spoken, c.text)
	}
	switch {
	case at < 0 && (c.reasoning || len(c.text) == 0):
		return nil
	case at < 0:
		return c.values
	}
	from, _ := slices.BinarySearch(c.ends, at+1) // the first token that ends behind the text's beginning
	to, _ := slices.BinarySearch(c.ends, at+len(c.text))
	return c.values[from:min(to+1, len(c.values))]
}

// read reads the choice at the cursor.
func (c *choice) read(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	for ok := s.Object(); ok; ok = s.NextMember() {
		switch string(s.Key()) {
		case "index":
			if s.Kind() == jsonscan.Number {
				c.index, _ = s.Int()
				continue
			}
			s.Skip()
		case "text":
			c.readText(s)
		case "delta", "message":
			c.readMessage(s)
		case "logprobs":
			c.readLogprobs(s)
		default:
			s.Skip()
		}
	}
}

func (c *choice) readText(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.String {
		s.Skip()
		return
	}
	c.text = s.AppendString(c.text[:0])
}

func (c *choice) readMessage(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	for ok := s.Object(); ok; ok = s.NextMember() {
		switch string(s.Key()) {
		case "content":
			c.readText(s)
		case "reasoning", "reasoning_content":
			if s.Kind() == jsonscan.String {
				raw, _ := s.String()
				c.reasoning = c.reasoning || len(raw) > 0
				continue
			}
			s.Skip()
		default:
			s.Skip()
		}
	}
}

// readLogprobs reads the tokens of a chat (content), or of a completion (token_logprobs and
// tokens).
func (c *choice) readLogprobs(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	for ok := s.Object(); ok; ok = s.NextMember() {
		name := string(s.Key())
		if s.Kind() != jsonscan.Array {
			s.Skip()
			continue
		}
		for ok := s.Array(); ok; ok = s.NextElement() {
			switch name {
			case "content":
				c.readToken(s)
			case "token_logprobs":
				c.readValue(s)
			case "tokens":
				c.readSpoken(s)
			default:
				s.Skip()
			}
		}
	}
}

func (c *choice) readToken(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.Object {
		s.Skip()
		return
	}
	for ok := s.Object(); ok; ok = s.NextMember() {
		switch string(s.Key()) {
		case "token":
			c.readSpoken(s)
		case "logprob":
			c.readValue(s)
		default:
			s.Skip()
		}
	}
}

func (c *choice) readSpoken(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.String {
		s.Skip()
		return
	}
	if len(c.ends) < MaxTokens {
		c.spoken = s.AppendString(c.spoken)
		c.ends = append(c.ends, len(c.spoken))
		return
	}
	s.Skip()
}

// readValue reads a log-probability. A value above 0 counts as 0, and one below Least as Least.
// Null, which the first token of a prompt has, counts for nothing.
func (c *choice) readValue(s *jsonscan.Cursor) {
	if s.Kind() != jsonscan.Number {
		s.Skip()
		return
	}
	number := s.Number()
	v, err := strconv.ParseFloat(string(number[:min(len(number), maxNumber)]), 64)
	if (err == nil || math.IsInf(v, 0)) && len(c.values) < MaxTokens {
		c.values = append(c.values, min(max(v, Least), 0))
	}
}

// Cut appends doc to dst with null in place of the log-probabilities of its choices. A document
// that is no JSON stays as it is.
func Cut(dst, doc []byte) []byte {
	c := jsonscan.New(doc)
	start, from := len(dst), 0
	if c.Kind() != jsonscan.Object {
		return append(dst, doc...)
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) != "choices" || c.Kind() != jsonscan.Array {
			c.Skip()
			continue
		}
		for ok := c.Array(); ok; ok = c.NextElement() {
			if c.Kind() != jsonscan.Object {
				c.Skip()
				continue
			}
			for ok := c.Object(); ok; ok = c.NextMember() {
				named := string(c.Key()) == "logprobs"
				c.Kind()
				at := c.Pos()
				if c.Skip(); named && !c.Failed() {
					dst = append(append(dst, doc[from:at]...), "null"...)
					from = c.Pos()
				}
			}
		}
	}
	if c.End(); c.Failed() {
		return append(dst[:start], doc...)
	}
	return append(dst, doc[from:]...)
}
