package learned

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// A prompt of /v1/completions is one text without messages. Its boundaries are the beginnings of
// lines whose first character is no white space: few tokenizers have a token across such a place.

// lineRole stands for the role of a message at the beginning of a line.
var lineRole = []byte("\n")

// A line behind a boundary begins with one of these. Tokenizers that take a line feed for a space
// have a token for a space with the word, so that the space belongs to no ids in common.
const (
	probeLine   = "the"
	anotherLine = "0"
)

// lineBefore returns the last boundary of text at or before an offset; 0: there is none.
func lineBefore(text []byte, at int) int {
	at = min(at, len(text)-1)
	for at > 0 {
		if text[at-1] == '\n' && !isSpace(text[at]) {
			return at
		}
		at = bytes.LastIndexByte(text[:at-1], '\n') + 1
	}
	return 0
}

func isSpace(b byte) bool { return b == ' ' || b >= '\t' && b <= '\r' }

// lines adds the end of the text to the keys and their ends, then its last boundaries, and then the
// last ones of what an earlier prompt had.
func (m *Map) lines(t *Text, keys *[maxBoundaries]uint64, ends *[maxBoundaries]int) (n int) {
	end, role := len(t.Bytes), []byte(nil)
	shared := min(end, t.Shared-t.From*prefix.BlockBytes+prefix.BlockBytes-1)
	for n < maxBoundaries {
		if key, ok := m.key(t, end, role); ok {
			keys[n], ends[n] = key, end
			n++
		}
		if role = lineRole; n == maxBoundaries/2 && shared < end && t.Shared > 0 {
			end = shared + 1
		}
		if end = lineBefore(t.Bytes, end-1); end == 0 {
			break
		}
	}
	return n
}

// ofText is the part of Lesson for the prompt of a completion.
func (l *Lesson) ofText(r *scan.Request, body []byte) *Lesson {
	value := r.Find(body, "prompt")
	c := jsonscan.New(value)
	if value == nil || c.Kind() != jsonscan.String {
		return nil // several prompts, or token ids
	}
	l.prompt = c.AppendString(nil)
	if c.Failed() || len(l.prompt) == 0 {
		return nil
	}
	echo := r.Find(body, "echo")
	l.Answer.strict = echo != nil && string(echo) != "false" && string(echo) != "null"
	l.size = len(l.members) + cap(l.prompt)
	return l
}

// runText is Run for the prompt of a completion. It teaches
//
//   - the last boundaries of the text that an earlier prompt had,
//   - the last boundary of the prompt,
//   - the end of the answer, where a further line follows,
//   - the whole prompt, if the answer has shown its ids, or if an earlier prompt was the same.
func (l *Lesson) runText(ask func(body []byte) ([]uint32, error)) error {
	text, end := l.prompt, len(l.prompt)
	if said, whole := l.Answer.Text(); whole {
		text = append(text[:end:end], said...)
		if text[len(text)-1] != '\n' {
			text = append(text, '\n')
		}
	}
	t := &Text{Chain: new(prefix.Chain), Bytes: text, Form: l.Form}
	t.Chain.Reset(l.Seed, text, nil)
	s := school{Lesson: l, text: t, ask: ask}
	if !l.shown {
		if err := s.teachLines(end); err != nil {
			return err
		}
	}
	if again := l.shared >= end-end%prefix.BlockBytes; !again && l.Answer.prompt == nil {
		return nil
	}
	key, ok := l.m.key(t, end, nil)
	if !ok || s.known(key) {
		return nil
	}
	ids := l.Answer.prompt
	if ids == nil {
		var err error
		if ids, err = ask(l.textBody(text[:end], "")); err != nil {
			return err
		}
	}
	s.putLine(key, end, ids)
	return nil
}

// teachLines teaches the boundaries of a text whose first end bytes are the prompt.
func (s *school) teachLines(end int) error {
	first := lineBefore(s.prompt, s.shared)
	second := lineBefore(s.prompt, s.shared+prefix.BlockBytes-1)
	boundaries := [...]int{first, second, lineBefore(s.prompt, end), len(s.text.Bytes)}
	for i, at := range boundaries {
		if at == 0 || i > 0 && at == boundaries[i-1] || i == len(boundaries)-1 && at == end {
			continue
		}
		if err := s.teachLine(at); err != nil {
			return err
		}
	}
	return nil
}

// textBody returns a body for /tokenize with a text and more.
func (l *Lesson) textBody(text []byte, more string) []byte {
	b := append(bytes.Clone(l.members), `,"prompt":`...)
	return append(jsonscan.AppendQuoted(b, append(text[:len(text):len(text)], more...)), '}')
}

// teachLine teaches the boundary at an offset of the text.
func (s *school) teachLine(at int) error {
	key, ok := s.m.key(s.text, at, lineRole)
	if !ok || s.known(key) {
		return nil
	}
	ids, err := s.common(lineRole, func(more string) ([]uint32, error) {
		return s.ask(s.textBody(s.text.Bytes[:at], more))
	}, probeLine, anotherLine)
	if err == nil {
		s.putLine(key, at, ids)
	}
	return err
}

// putLine is put for an offset of the text of a completion.
func (s *school) putLine(key uint64, at int, ids []uint32) {
	var before []uint64
	for at = lineBefore(s.text.Bytes, at-1); at > 0 && len(before) < maxBoundaries; {
		if key, ok := s.m.key(s.text, at, lineRole); ok {
			before = append(before, key)
		}
		at = lineBefore(s.text.Bytes, at-1)
	}
	s.store(key, before, ids)
}
