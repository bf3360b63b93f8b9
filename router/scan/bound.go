package scan

import (
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// A prompt is hashed up to 65,536 blocks, the first TextKept bytes of its canonical text. Text
// therefore keeps at most TextKept bytes of a string or a list. The later bytes cannot be among the
// prompt's first TextKept bytes, whatever precedes the string or list. An object has to be complete
// to be sorted; too large objects are refused.
const (
	// TextKept is the number of leading bytes of the canonical text that Text always keeps.
	TextKept = 4 << 20
	// TokensKept is the number of leading token ids that Tokens always keeps.
	TokensKept = TextKept / 4

	textMost    = 24 << 20 // bytes of Text; a request with more is refused
	membersMost = 1 << 16  // members of the open objects in one value; a request with more is refused
	piecesMost  = 1 << 16  // pieces that wait for settleOrder; one more piece calls settleOrder at once
	shortMost   = 64 << 10 // bytes of a model's name, a salt or an id, as the body spells them
	pieceBytes  = 64 << 10 // bytes of a string read at a time
)

// clip drops the end of a string or list beyond the kept bytes. The string or list begins at start
// and is the last one in Text.
func (r *Request) clip(start int) {
	if len(r.Text)-start > r.keep {
		r.cut(max(start+r.keep, 0))
	}
}

// cut drops Text[end:]. Recording of marks ends there, because marks are about text that is hashed.
func (r *Request) cut(end int) {
	r.settleOrder()
	r.Omitted += len(r.Text) - end
	r.Text = r.Text[:end]
	r.turns.end = min(r.turns.end, end)
	r.rec.stop()
}

// tooLong refuses a request whose objects make Text longer than textMost.
func (r *Request) tooLong() {
	r.fail(r.c.Pos(), CodeTooLarge, "`"+r.at.name()+"` is too large: its objects hold more than "+
		strconv.Itoa(textMost>>20)+" MiB of text; send less")
}

// text appends the string at the cursor, up to TextKept bytes.
func (r *Request) text() {
	if r.c.OpenString() {
		r.textFrom(len(r.Text))
	}
}

// textFrom appends the rest of the string that the cursor is in. The string's text begins at start.
func (r *Request) textFrom(start int) {
	var ended bool
	r.Text, ended = r.c.AppendText(r.Text, r.c.Pos()+pieceBytes)
	for r.clip(start); !ended; r.clip(start) {
		r.room(start)
		r.Text, ended = r.c.AppendText(r.Text, r.c.Pos()+pieceBytes)
	}
}

// room grows Text once for a string that turns out to be long. The string begins at start.
func (r *Request) room(start int) {
	rest := min(r.c.Len()-r.c.Pos(), start+r.keep-len(r.Text))
	if cap(r.Text)-len(r.Text) < rest {
		r.Text = slices.Grow(r.Text, rest+2*pieceBytes)
	}
}

// number appends a number in canonical form.
func (r *Request) number() {
	number := r.c.Number()
	if over := len(number) - r.keep; over > 0 {
		r.Omitted += over
		number = number[:r.keep]
	}
	r.Text = appendNumber(append(r.Text, markScalar), number)
}

// memberName appends the name of a member, up to TextKept bytes.
func (r *Request) memberName() {
	r.Text = append(r.Text, markMember)
	if r.c.OpenKey() {
		r.textFrom(len(r.Text))
		r.c.Colon()
	}
}

// token appends a token id, or counts it as omitted.
func (r *Request) token() {
	start := r.skipSpace()
	if r.c.Kind() != jsonscan.Number {
		r.wrongPrompt()
		return
	}
	id, ok := r.c.Int()
	switch {
	case !ok || id < 0 || id > 1<<32-1:
		r.fail(start, CodeValue, "`"+r.at.name()+"` holds a token id that is no whole number from 0 to 4294967295")
	case len(r.Tokens) < TokensKept:
		r.Tokens = append(r.Tokens, uint32(id))
	default:
		r.Omitted += 4
	}
}
