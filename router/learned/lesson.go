package learned

import (
	"bytes"
	"errors"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// Lesson is what a prompt can teach once it has been answered. Make one with Map.Lesson, let Answer
// read the answer, and call Run. One goroutine at a time uses a Lesson.
type Lesson struct {
	Answer Answer

	m *Map
	Origin
	members  []byte   // of a body for /tokenize without its messages: {"model":"m"
	messages [][]byte // the elements of the body's messages
	prompt   []byte   // the text of a completion's prompt; then there are no messages
	shared   int      // bytes of the canonical text that an earlier prompt had
	shown    bool     // only the ids that the answer shows teach; those of /tokenize would be others
	size     int
}

// These bound a lesson.
const (
	maxMessages = 4096
	maxShared   = 1 << 30
)

// Origin says what the ids of a prompt depend on besides its messages or text.
type Origin struct {
	Seed prefix.Digest // of the chain
	Form uint64        // see Map.Form
}

// Lesson returns the lesson of a chat of the given origin whose body has been scanned as r. model
// is the engine's name of the model. shared is the number of leading bytes of the canonical text
// that an earlier prompt had. The lesson copies what it needs of body. Lesson returns nil for a
// chat that teaches nothing: one with media, or one that sets add_generation_prompt or
// continue_final_message. For the API Completions, Lesson returns that of a prompt that is one
// text. A body with a member that alters the prompt, but not the ids of /tokenize, teaches only the
// whole prompt, and only if the answer has shown its ids.
func (m *Map) Lesson(api scan.API, r *scan.Request, body []byte, model string, from Origin, shared int) *Lesson {
	if !m.trusts(from.Form) {
		return nil
	}
	l := &Lesson{m: m, Origin: from, shared: min(shared, maxShared)}
	l.members = jsonscan.AppendQuoted(append(l.members, `{"model":`...), model)
	r.Members(body, func(name, value []byte) bool {
		if alters(name, value) {
			l.shown = l.shown || !tokenized(name)
			l.members = append(append(append(append(l.members, `,"`...), name...), `":`...), value...)
		}
		return true
	})
	if api == scan.Completions {
		return l.ofText(r, body)
	}
	return l.ofChat(r, body)
}

// ofChat is the part of Lesson for a chat.
func (l *Lesson) ofChat(r *scan.Request, body []byte) *Lesson {
	list := r.Find(body, "messages")
	if r.Media > 0 || list == nil || r.Find(body, "add_generation_prompt") != nil ||
		r.Find(body, "continue_final_message") != nil {
		return nil
	}
	list = bytes.Clone(list)
	c := jsonscan.New(list)
	for ok := c.Array(); ok; ok = c.NextElement() {
		c.Kind()
		from := c.Pos()
		c.Skip()
		l.messages = append(l.messages, list[from:c.Pos()])
	}
	if c.Failed() || len(l.messages) == 0 || len(l.messages) > maxMessages {
		return nil
	}
	l.size = len(l.members) + len(list)
	return l
}

// Size returns the bytes that the lesson keeps of the chat and of its answer so far.
func (l *Lesson) Size() int { return l.size + l.Answer.size() }

// These are the errors of Run.
var (
	errForm  = errors.New("the chat has another form than the lesson expects")
	errEmpty = errors.New("the engine has sent no token ids")
	errSame  = errors.New("the engine's tokens do not tell a letter from a digit")
)

// The content of the message behind a boundary is one of these. A letter and a digit share no
// token, so the ids of two chats part where the content begins.
const (
	probe   = "a"
	another = "0"
)

// Run teaches the map the boundaries of the chat that will or do repeat:
//
//   - the end of the answer, where the user's next message follows,
//   - the end of the chat, if the answer is more than text,
//   - the whole chat, if the answer has shown its ids, or if an earlier chat was the same,
//   - the beginning of the user's first message, behind a system prompt,
//   - the last boundary of the text that an earlier prompt had.
//
// Run asks for nothing that is known. ask returns the engine's ids for a body of /tokenize; Run
// calls it at most nine times.
func (l *Lesson) Run(ask func(body []byte) ([]uint32, error)) error {
	switch {
	case l.shown && l.Answer.prompt == nil:
		return nil
	case l.prompt != nil:
		return l.runText(ask)
	}
	all := l.messages
	text, whole := l.Answer.Text()
	if whole {
		said := jsonscan.AppendQuoted([]byte(`{"role":"assistant","content":`), text)
		all = append(all[:len(all):len(all)], append(said, '}'))
	}
	t, ends, err := l.read(all)
	if err != nil {
		return err
	}
	s := school{Lesson: l, text: t, ends: ends, all: all, ask: ask}
	last := len(l.messages)
	if l.shown {
		return s.teachWhole(last)
	}
	if k := s.firstUser(last); k > 0 {
		err = s.teach(k)
	}
	if k := s.parted(last); err == nil && k > 0 {
		err = s.teach(k)
	}
	if err == nil {
		err = s.teach(len(all))
	}
	end := ends[last]
	if again := l.shared >= end-end%prefix.BlockBytes; err == nil && (again || l.Answer.prompt != nil) {
		err = s.teachWhole(last)
	}
	return err
}

// read returns the canonical text of a chat, and the ends of its messages in it. ends[k] is the
// beginning of message k, and the last one the end of the text.
func (l *Lesson) read(messages [][]byte) (t *Text, ends []int, err error) {
	var r scan.Request
	if err := scan.Scan(scan.Chat, l.body(messages, ""), &r); err != nil {
		return nil, nil, err
	}
	if r.Omitted > 0 || r.Media > 0 || len(r.Tokens) > 0 {
		return nil, nil, errForm
	}
	t = &Text{Chain: new(prefix.Chain), Bytes: r.Text, Form: l.Form}
	t.Chain.Reset(l.Seed, r.Text, nil)
	for at, b := range r.Text {
		if b == markMessage {
			ends = append(ends, at)
		}
	}
	if len(ends) != len(messages) {
		return nil, nil, errForm
	}
	return t, append(ends, len(r.Text)), nil
}

// body returns a body for /tokenize with the messages. more follows them in the object.
func (l *Lesson) body(messages [][]byte, more string) []byte {
	b := append(bytes.Clone(l.members), `,"messages":[`...)
	b = append(append(b, bytes.Join(messages, []byte(","))...), ']')
	return append(append(b, more...), '}')
}

// school is a Lesson while it runs.
type school struct {
	*Lesson
	text *Text
	ends []int
	all  [][]byte // messages, with the answer
	ask  func(body []byte) ([]uint32, error)
}

// firstUser returns the number of the first user's message, or 0 if none follows another message.
func (s *school) firstUser(last int) int {
	for k := range last {
		if string(roleAt(s.text.Bytes, s.ends[k])) == "user" {
			return k
		}
	}
	return 0
}

// parted returns the number of the last message that begins in the shared text, or 0.
func (s *school) parted(last int) int {
	for k := last - 1; k > 0; k-- {
		if s.ends[k] <= s.shared {
			return k
		}
	}
	return 0
}

// role returns the role of the message that follows boundary k. The next message after the answer
// is a user's, and the one after the prompt is the answer.
func (s *school) role(k int) []byte {
	switch {
	case s.ends[k] < len(s.text.Bytes):
		return roleAt(s.text.Bytes, s.ends[k])
	case len(s.all) > len(s.messages):
		return []byte("user")
	}
	return []byte("assistant")
}

// teachWhole teaches the ids of the first last messages as a whole prompt.
func (s *school) teachWhole(last int) error {
	key, ok := s.m.key(s.text, s.ends[last], nil)
	if !ok || s.known(key) {
		return nil
	}
	ids := s.Answer.prompt
	var err error
	if ids == nil {
		ids, err = s.ask(s.body(s.messages, ""))
	}
	if err == nil {
		s.put(key, last, ids)
	}
	return err
}

// teach teaches the boundary before message k: what the ids of two chats have in common that go on
// with different contents.
func (s *school) teach(k int) error {
	role := s.role(k)
	key, ok := s.m.key(s.text, s.ends[k], role)
	if !ok || s.known(key) || string(role) != "user" && string(role) != "assistant" {
		return nil
	}
	ids, err := s.common(role, func(more string) ([]uint32, error) { return s.goOn(k, role, more) }, probe, another)
	if err == nil {
		s.put(key, k, ids)
	}
	return err
}

// common returns the ids that do not depend on what follows a boundary with this role: what the ids
// of two texts have in common that go on with one and another.
func (s *school) common(role []byte, goOn func(more string) ([]uint32, error), one, another string) ([]uint32, error) {
	ids, err := goOn(one)
	if err != nil {
		return nil, err
	}
	if n, sure := s.m.tailOf(s.Form, role); sure && n <= len(ids) {
		return ids[:len(ids)-n], nil
	}
	others, err := goOn(another)
	if err != nil {
		return nil, err
	}
	same := 0
	for same < min(len(ids), len(others)) && ids[same] == others[same] {
		same++
	}
	if same == len(ids) || same == len(others) {
		return nil, errSame
	}
	s.m.agree(s.Form, role, len(ids)-same)
	return ids[:same], nil
}

// goOn returns the ids of the first k messages and a further one.
func (s *school) goOn(k int, role []byte, content string) ([]uint32, error) {
	next := append(append([]byte(`{"role":"`), role...), `","content":`...)
	next = append(jsonscan.AppendQuoted(next, content), '}')
	return s.ask(s.body(append(s.all[:k:k], next), `,"add_generation_prompt":false`))
}

func (s *school) known(key uint64) bool {
	e, _ := s.m.first([]uint64{key})
	return e != nil
}

// put stores the ids of the beginning that ends before message k. The longest known shorter
// beginning has its first blocks.
func (s *school) put(key uint64, k int, ids []uint32) {
	var before []uint64
	for at := k - 1; at > 0 && len(before) < maxBoundaries; at-- {
		if key, ok := s.m.key(s.text, s.ends[at], roleAt(s.text.Bytes, s.ends[at])); ok {
			before = append(before, key)
		}
	}
	s.store(key, before, ids)
}

// store stores the ids of a beginning. before are the keys of shorter ones, the longest first.
func (s *school) store(key uint64, before []uint64, ids []uint32) {
	parent, _ := s.m.first(before)
	var c prefix.Chain
	c.Reset(s.Seed, nil, ids)
	c.HashTo(c.Blocks())
	last, _ := c.Digest(c.Blocks() - 1)
	s.m.put(&Entry{key: key, form: s.Form, last: last, tokens: len(ids)}, parent, c.Keys())
}

// IDs reads the token ids of an engine's answer to /tokenize.
func IDs(doc []byte) ([]uint32, error) {
	var ids []uint32
	c := jsonscan.New(doc)
	if c.Kind() != jsonscan.Object {
		return nil, errEmpty
	}
	for ok := c.Object(); ok; ok = c.NextMember() {
		if string(c.Key()) != "tokens" || c.Kind() != jsonscan.Array {
			c.Skip()
			continue
		}
		var fine bool
		if ids, fine = idsAt(&c); !fine {
			return nil, errEmpty
		}
	}
	if c.End(); c.Failed() || len(ids) == 0 {
		return nil, errEmpty
	}
	return ids, nil
}

// idsAt reads the list of ids at the cursor. fine is false if it has anything else.
func idsAt(c *jsonscan.Cursor) (ids []uint32, fine bool) {
	fine = true
	for ok := c.Array(); ok; ok = c.NextElement() {
		if c.Kind() != jsonscan.Number {
			fine = false
			c.Skip()
			continue
		}
		n, whole := c.Int()
		fine = fine && whole && n >= 0 && n < 1<<32
		ids = append(ids, uint32(n))
	}
	if !fine || c.Failed() {
		return nil, false
	}
	return ids, true
}
