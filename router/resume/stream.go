// Package resume reads a stream of the API chat or completions, so that another engine can go on
// with the stream when its engine is gone, and fits the other engine's chunks into the stream.
//
// An engine that sends the ids of its tokens (vLLM: return_token_ids) makes an exact continuation
// possible: the prompt's ids and those of the delivered tokens are the other engine's prompt.
// Without ids the other engine may continue the delivered text. A Stream keeps what that needs, the
// request's body, token ids and text, within a Room that all streams share.
//
// The package does no I/O. Package plan decides who goes on, and asks.
package resume

import (
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
)

// By is the way in which another engine can go on with a stream.
type By uint8

// These are the ways.
const (
	None  By = iota // no engine can go on
	Start           // from the start: nothing of the answer has been delivered
	IDs             // by token ids
	Text            // by text
	End             // only the end of the stream is missing
)

var byNames = [...]string{"none", "start", "ids", "text", "end"}

// String is the way's name in metrics and logs.
func (b By) String() string { return byNames[b] }

// Why is the reason why no engine can go on with a stream.
type Why uint8

// These are the reasons.
const (
	Possible  Why = iota
	Tool          // in the middle of a tool call
	Reasoning     // in a reasoning section
	Unknown       // the engine sends no token ids, or not for all of its text
	Unread        // the engine's chunks have another form, or too many bytes
	Full          // there is no room for more bytes
	Refused       // the other engine has not gone on from the delivered tokens
)

var whyNames = [...]string{"", "tool", "reasoning", "unknown", "unread", "memory", "refused"}

// String is the reason's name in metrics and logs.
func (w Why) String() string { return whyNames[w] }

const (
	maxHead  = 1 << 10  // bytes of a chunk's head
	keptSize = 16 << 10 // bytes of a buffer that is kept for the next stream
	idLength = 6        // bytes of an id in a list, about
	leastIDs = 256      // token ids for which a stream reserves room at first
)

// Stream is one answer as its client has it so far. Begin it, then pass it each event: of the first
// leg to First, of any further leg to Later. Restart begins the first leg anew. End the use with
// Reset. The zero Stream is ready. One goroutine at a time uses a Stream.
type Stream struct {
	kept // first, with the members that each token needs
	Asked
	memory *room.Room
	held   int64 // bytes reserved in memory

	finished bool // finish_reason has been delivered
	counted  bool // the usage has been delivered
	reasoned bool // some reasoning has been delivered

	by      By   // how the running leg goes on
	checked bool // the running leg has shown the delivered ids as its prompt
	seam    seam
	number  [3][20]byte // scratch for the counts of the usage
}

// kept is what another engine needs of the answer so far. A token touches one or two cache lines of
// it, because the memory of thousands of streams is in no cache.
type kept struct {
	form    *form    // of the last chunk; nil: it has none
	ids     []uint32 // of the prompt, then of the answer
	sure    int      // leading ids whose whole text has been delivered
	chunks  int64    // chunks with text
	head    []byte   // of every chunk for the client, up to its choices
	why     Why
	section section
	idsLost bool // some delivered token has no id
	shows   bool // the client wants the ids
	texts   bool // text is kept
	byText  bool // text may be continued
	begun   bool // some chunk has been delivered, so head is known
	listed  bool // the engine has sent ids

	prompt    int    // ids of the prompt; -1: unknown
	text      []byte // of the answer, as in a JSON string
	delivered int64  // tokens of earlier legs
}

// section is the kind of the last delivered text.
type section uint8

const (
	nothing section = iota
	content
	reasoning
)

// Begin begins a stream whose request has a body of that many bytes. Begin returns false if there
// is no room for another stream.
func (s *Stream) Begin(a Asked, body int, m *room.Room, byText bool) bool {
	size := int64(body + 4*cap(s.ids) + cap(s.text))
	if !m.Take(size) {
		return false
	}
	s.Asked, s.memory, s.held = a, m, size
	s.byText, s.shows, s.texts = byText, a.IDs, byText || a.Holdback > 0
	s.prompt = -1
	return true
}

// Restart forgets the answer so far. The client has got nothing of it.
func (s *Stream) Restart() {
	*s = Stream{
		kept: kept{
			ids: s.ids[:0], text: s.text[:0], head: s.head[:0], prompt: -1,
			shows: s.shows, texts: s.texts, byText: s.byText,
		},
		Asked: s.Asked, memory: s.memory, held: s.held,
	}
}

// Reset frees the stream's room, and its memory for another stream.
func (s *Stream) Reset() {
	if s.memory != nil {
		s.memory.Give(s.held)
	}
	*s = Stream{
		kept: kept{ids: small(s.ids, 4), text: small(s.text, 1), head: small(s.head, 1)},
	}
}

// small empties b, or drops it if its elements of size bytes take too much to be kept.
func small[T any](b []T, size int) []T {
	if cap(b)*size > keptSize {
		return nil
	}
	return b[:0]
}

// Free frees what only another engine would need. Nothing can go on with the stream afterwards, and
// chunks count as tokens.
func (s *Stream) Free() {
	s.memory.Give(s.held)
	s.held, s.ids, s.text, s.prompt, s.sure = 0, nil, nil, -1, 0
}

// lose notes that no engine can go on with the stream any more.
func (s *Stream) lose(why Why) {
	if s.why == Possible {
		s.why = why
	}
}

// Lost returns the reason why no engine can go on with the stream, or Possible.
func (s *Stream) Lost() Why { return s.why }

// First reads an event of the first leg and appends what the client gets of it to out.
func (s *Stream) First(e sse.Event, out []byte) []byte {
	if s.why != Possible && (s.shows || s.begun && !s.listed) {
		return append(out, e.Raw...) // there is nothing to hide
	}
	if ids, ok := s.form.match(e.Data, s.head); ok {
		return s.plain(e, ids, out)
	}
	var c chunk
	if !c.read(e.Data) || c.foreign || !c.clean {
		s.lose(Unread)
		return append(out, e.Raw...)
	}
	if !s.begun {
		if s.begun = true; c.choices > maxHead || !c.named {
			s.lose(Unread)
		} else {
			s.head = append(s.head[:0], e.Data[:c.choices]...)
		}
	}
	s.promptOf(&c, e.Data)
	s.note(&c, e.Data)
	if s.why == Possible {
		s.form = learn(&c, e.Data)
	}
	if s.shows {
		return append(out, e.Raw...)
	}
	if c.blank() {
		return out
	}
	var ed edits
	c.hideIDs(&ed)
	return ed.show(e, out)
}

// hideIDs replaces the ids, which the client has not asked for, as the engine would.
func (c *chunk) hideIDs(ed *edits) {
	for _, at := range [...]span{c.ids, c.promptIDs} {
		if at != (span{}) {
			ed.put(at, null)
		}
	}
}

// promptOf reads the ids of the prompt, which come once.
func (s *Stream) promptOf(c *chunk, data []byte) {
	list := c.promptIDs.of(data)
	if len(list) == 0 || list[0] != '[' {
		return
	}
	if s.listed = true; s.prompt >= 0 || s.why != Possible {
		return
	}
	if room := len(s.ids) + len(list)/idLength; room > cap(s.ids) && s.why == Possible {
		s.ids = grown(s, s.ids, room-len(s.ids), 4)
	}
	if s.addIDs(list); s.why == Possible {
		s.prompt = len(s.ids)
		s.sure = s.prompt
	}
}

// plain reads a chunk of the usual form, which is not the last one.
func (s *Stream) plain(e sse.Event, ids span, out []byte) []byte {
	if ids == (span{}) {
		s.heard(e.Data[len(s.head)+len(s.form.opening) : len(e.Data)-len(s.form.middle)])
		return append(out, e.Raw...)
	}
	s.addIDs(ids.of(e.Data))
	s.heard(e.Data[len(s.head)+len(s.form.opening) : ids.from-len(s.form.middle)])
	if s.shows {
		return append(out, e.Raw...)
	}
	return replace(e, ids, null, out)
}

// note reads what a chunk adds to the answer, but for the ids of the prompt.
func (s *Stream) note(c *chunk, data []byte) {
	if c.listed {
		s.listed = true
		s.addIDs(c.ids.of(data))
	} else if c.visible() {
		s.idsLost = true
	}
	switch {
	case c.tool:
		s.lose(Tool)
	case c.reasoning:
		s.section, s.reasoned = reasoning, true
		s.sure = len(s.ids)
	}
	if c.text != (span{}) {
		s.heard(data[c.text.from+1 : c.text.to-1])
	}
	s.counted = s.counted || c.empty && c.usage != (span{})
	s.finished = s.finished || c.finished
	if s.idsLost && !s.byText && s.section != nothing {
		s.lose(Unknown)
	}
}

// heard notes text that the client gets, as it is in a JSON string.
func (s *Stream) heard(text []byte) {
	if len(text) == 0 || s.why != Possible {
		return
	}
	s.section, s.sure = content, len(s.ids)
	s.chunks++
	if !s.texts {
		return
	}
	if len(s.text)+len(text) > cap(s.text) {
		s.text = grown(s, s.text, len(text), 1)
	}
	if s.why == Possible {
		s.text = append(s.text, text...)
	}
}

// reserve takes n bytes of the room for all streams. Without so much room no engine can go on.
func (s *Stream) reserve(n int) bool {
	if !s.memory.Take(int64(n)) {
		s.lose(Full)
		return false
	}
	s.held += int64(n)
	return true
}

// grown returns b with room for n more elements of size bytes, if there is room for it.
func grown[T any](s *Stream, b []T, n, size int) []T {
	room := max(cap(b)+cap(b)/2, len(b)+n, leastIDs)
	if !s.reserve((room - cap(b)) * size) {
		return b
	}
	return append(make([]T, 0, room), b...)
}

// addIDs appends the ids of a JSON list of whole numbers.
func (s *Stream) addIDs(list []byte) {
	if s.idsLost || s.why != Possible {
		return
	}
	id, digits := uint64(0), 0
	for _, b := range list {
		if d := b - '0'; d <= 9 {
			id, digits = id*10+uint64(d), digits+1
			continue
		}
		if digits > 0 {
			if digits > 10 || id > 1<<32-1 {
				s.lose(Unread)
				return
			}
			if len(s.ids) == cap(s.ids) {
				if s.ids = grown(s, s.ids, 1, 4); s.why != Possible {
					return
				}
			}
			s.ids = append(s.ids, uint32(id))
			id, digits = 0, 0
		}
		if b != ',' && b != '[' && b != ']' && b != ' ' {
			s.lose(Unread)
			return
		}
	}
}

// eachToken says whether the client sees each token, even one without text. No token may then be
// generated again.
func (s *Stream) eachToken() bool { return s.Logprobs || s.shows }

// How returns the way in which another engine can go on with the stream now.
func (s *Stream) How() (By, Why) {
	switch {
	case s.why != Possible:
		return None, s.why
	case s.finished:
		return End, Possible
	case s.section == nothing && !(s.eachToken() && s.Tokens() > 0):
		return Start, Possible
	case s.section == reasoning:
		return None, Reasoning
	case s.prompt >= 0 && !s.idsLost && !(s.eachToken() && s.Holdback == 0 && s.sure < len(s.ids)):
		return IDs, Possible
	case s.byText && !s.reasoned && !s.Open && !s.Prompted:
		return Text, Possible
	}
	return None, Unknown
}

// Tokens returns how many tokens of the answer have been delivered. Chunks with text count as
// tokens where the ids are unknown.
func (s *Stream) Tokens() int64 {
	if s.prompt >= 0 && !s.idsLost {
		return int64(len(s.ids) - s.prompt)
	}
	return s.chunks
}

// Kept returns how many of the tokens the next leg need not repeat.
func (s *Stream) Kept() int64 {
	if by, _ := s.How(); by != IDs || s.Holdback > 0 {
		return s.Tokens()
	}
	return int64(s.sure - s.prompt)
}

// Counts returns the usage of the running leg so far, which its engine has not reported.
func (s *Stream) Counts() (c usage.Counts) {
	c.Completion, c.HasCompletion = max(s.Kept()-s.delivered, 0), true
	if s.prompt >= 0 {
		c.Prompt, c.HasPrompt = int64(s.prompt)+s.delivered, true
	}
	return c
}

// Way returns how the running leg goes on.
func (s *Stream) Way() By { return s.by }
