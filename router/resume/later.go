package resume

import (
	"bytes"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/scan"
)

// Verdict is what an event of a further leg means for the stream.
type Verdict uint8

// These are the verdicts.
const (
	GoOn  Verdict = iota
	Over          // the stream is complete: it has met a stop string, and has its closing event
	Wrong         // the engine does not go on from the delivered tokens; nothing of the event is shown
)

// Later reads an event of a further leg and appends what the client gets of it to out: chunks of
// the client's stream, without a second role and without what has been delivered.
func (s *Stream) Later(e sse.Event, out []byte) (rest []byte, v Verdict) {
	if !s.begun { // the broken legs have delivered nothing
		return s.First(e, out), GoOn
	}
	var c chunk
	if !c.read(e.Data) || c.foreign || !c.clean || !c.named {
		if bytes.HasPrefix(e.Data, failure) {
			s.lose(Refused)
			return append(out, e.Raw...), GoOn // the engine's own error ends the stream
		}
		return out, s.wrong()
	}
	if !s.check(&c, e.Data) {
		return out, s.wrong()
	}
	var ed edits
	ed.put(span{0, c.choices}, s.head)
	if c.empty {
		s.counted = s.counted || c.usage != (span{})
		s.count(&c, e.Data, &ed)
		return ed.show(e, out), GoOn
	}
	return s.choice(&c, e, &ed, out)
}

var failure = []byte(`{"error"`)

// wrong notes that the engine does not go on from the delivered tokens. An engine that does not
// know how to go on by ids may still go on by text.
func (s *Stream) wrong() Verdict {
	if s.by == IDs && !s.checked && s.byText {
		s.idsLost = true
	} else {
		s.lose(Refused)
	}
	return Wrong
}

// check compares the prompt of the running leg with the delivered tokens. A leg by ids must show
// its prompt before its first text.
func (s *Stream) check(c *chunk, data []byte) bool {
	list := c.promptIDs.of(data)
	shown := len(list) > 0 && list[0] == '['
	switch {
	case s.by == Start && shown && s.prompt < 0:
		s.promptOf(c, data)
	case s.by == IDs && shown && !s.checked:
		s.checked = sameIDs(list, s.ids)
		return s.checked
	case s.by == IDs && !s.checked:
		return !c.visible() && !c.listed
	case s.by != Start && c.reasoning && s.section == content:
		return false // the parser takes the rest of the answer for reasoning
	}
	return true
}

// sameIDs says whether a JSON list has exactly these ids.
func sameIDs(list []byte, ids []uint32) bool {
	at, id, digits := 0, uint64(0), 0
	for _, b := range list {
		if d := b - '0'; d <= 9 && digits < 11 {
			id, digits = id*10+uint64(d), digits+1
			continue
		}
		if digits > 0 {
			if at == len(ids) || uint64(ids[at]) != id {
				return false
			}
			at, id, digits = at+1, 0, 0
		}
	}
	return at == len(ids)
}

// choice reads a chunk with a choice.
func (s *Stream) choice(c *chunk, e sse.Event, ed *edits, out []byte) (rest []byte, v Verdict) {
	if c.role != (span{}) && !c.visible() && !c.logprobs {
		return out, GoOn // the first chunk; the client has had one
	}
	if c.blank() && !s.shows {
		s.note(c, e.Data)
		return out, GoOn
	}
	text := c.text
	s.note(c, e.Data)
	if c.role != (span{}) {
		ed.put(c.roleSpan(e.Data), nil)
	}
	if s.shows {
		if c.promptIDs != (span{}) {
			ed.put(c.promptIDs, null)
		}
	} else {
		c.hideIDs(ed)
	}
	s.count(c, e.Data, ed)
	if !s.seam.open || text == (span{}) && !c.finished {
		return ed.show(e, out), GoOn
	}
	var shown, stop []byte
	if text == (span{}) {
		shown, stop = s.seam.pass(nil, true)
		out = s.say(shown, out)
	} else {
		shown, stop = s.seam.pass(e.Data[text.from+1:text.to-1], c.finished)
		ed.put(span{text.from + 1, text.to - 1}, shown)
	}
	if stop == nil {
		return ed.show(e, out), GoOn
	}
	return s.stopAt(stop, c, e, ed, out)
}

// say appends a chunk with the text, which is as in a JSON string.
func (s *Stream) say(text, out []byte) []byte {
	if len(text) == 0 {
		return out
	}
	first, last := `"choices":[{"index":0,"delta":{"content":"`, `"},"logprobs":null,"finish_reason":null}]}`
	if s.API == scan.Completions {
		first, last = `"choices":[{"index":0,"text":"`, `","logprobs":null,"finish_reason":null}]}`
	}
	out = append(append(append(append(out, before...), s.head...), first...), text...)
	return append(append(out, last...), newline...)
}

// stopAt ends the stream at a stop string that begins before the seam.
func (s *Stream) stopAt(stop []byte, c *chunk, e sse.Event, ed *edits, out []byte) (rest []byte, v Verdict) {
	ended := c.finished
	var said []byte
	switch {
	case c.finish == (span{}):
		return out, s.wrong()
	case c.stopReason != (span{}):
		said = append(append(append(said, '"'), stop...), '"')
		ed.put(c.stopReason, said)
		ed.put(c.finish, stopped)
	default:
		said = append(append(append(said, stoppedBy...), stop...), '"')
		ed.put(c.finish, said)
	}
	out = ed.show(e, out)
	if s.finished = true; ended { // the engine ends the stream
		return out, GoOn
	}
	return s.Close(out), Over
}

var (
	stopped   = []byte(`"stop"`)
	stoppedBy = []byte(`"stop","stop_reason":"`)
)

// roleSpan returns the place of the delta's role with one comma, if there is one.
func (c *chunk) roleSpan(data []byte) span {
	at := c.role
	if c.roleComma > 0 {
		at.to = c.roleComma
		return at
	}
	for i := at.from - 1; i > 0 && data[i] != '{'; i-- {
		if data[i] == ',' {
			at.from = i
			break
		}
	}
	return at
}

// count corrects a usage: the delivered tokens were part of the leg's prompt, and are part of the
// answer.
func (s *Stream) count(c *chunk, data []byte, ed *edits) {
	had := s.delivered
	if c.usage == (span{}) || had == 0 || s.by == Start {
		return
	}
	cur := jsonscan.New(data)
	cur.Resume(data, c.usage.from, 1)
	prompt := int64(-1)
	for ok := cur.Object(); ok; ok = cur.NextMember() {
		switch string(cur.Key()) {
		case "prompt_tokens":
			prompt = s.shift(&cur, 0, -had, ed)
		case "completion_tokens":
			s.shift(&cur, 1, had, ed)
		case "prompt_tokens_details":
			s.limit(&cur, prompt, ed)
		default:
			cur.Skip()
		}
	}
}

// shift adds by to the next number, and returns the sum, or -1.
func (s *Stream) shift(cur *jsonscan.Cursor, scratch int, by int64, ed *edits) int64 {
	if cur.Kind() != jsonscan.Number {
		cur.Skip()
		return -1
	}
	from := cur.Pos()
	n, ok := cur.Int()
	if n += by; !ok || n < 0 {
		return -1
	}
	ed.put(span{from, cur.Pos()}, strconv.AppendInt(s.number[scratch][:0], n, 10))
	return n
}

// limit makes cached_tokens at most the prompt.
func (s *Stream) limit(cur *jsonscan.Cursor, prompt int64, ed *edits) {
	if cur.Kind() != jsonscan.Object {
		cur.Skip()
		return
	}
	for ok := cur.Object(); ok; ok = cur.NextMember() {
		if string(cur.Key()) != "cached_tokens" || cur.Kind() != jsonscan.Number {
			cur.Skip()
			continue
		}
		from := cur.Pos()
		if n, ok := cur.Int(); ok && prompt >= 0 && n > prompt {
			ed.put(span{from, cur.Pos()}, strconv.AppendInt(s.number[2][:0], prompt, 10))
		}
	}
}

// Close appends the rest of a stream whose finish_reason has been delivered: the usage, if the
// client wants it and all tokens are known, and the closing event.
func (s *Stream) Close(out []byte) []byte {
	if s.Usage && !s.counted && s.prompt >= 0 && s.why == Possible {
		n := s.Tokens()
		out = append(append(append(out, before...), s.head...), `"choices":[],"usage":{"prompt_tokens":`...)
		out = strconv.AppendInt(out, int64(s.prompt), 10)
		out = strconv.AppendInt(append(out, `,"total_tokens":`...), int64(s.prompt)+n, 10)
		out = strconv.AppendInt(append(out, `,"completion_tokens":`...), n, 10)
		out = append(append(out, "}}"...), newline...)
	}
	s.by = End
	return append(out, "data: [DONE]\n\n"...)
}

// Cut ends the stream where the limits of the request end it, as an engine does.
func (s *Stream) Cut(out []byte) []byte {
	choice := `"choices":[{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]}`
	if s.API == scan.Completions {
		choice = `"choices":[{"index":0,"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}`
	}
	out = append(append(append(append(out, before...), s.head...), choice...), newline...)
	s.finished = true
	return s.Close(out)
}
