package scan

import (
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// A prompt is hashed as far as 65,536 blocks, the first TextKept bytes of its
// canonical text. So Text keeps no more than that of a string or of a list: its
// later bytes cannot be among the prompt's first ones, whatever is put in front of
// it. Objects are put into order as a whole. They are bounded by refusal.
const (
	// TextKept is the number of leading bytes of the canonical text that Text always has.
	TextKept = 4 << 20
	// TokensKept is the number of leading token ids that Tokens always has.
	TokensKept = TextKept / 4

	textMost    = 24 << 20 // bytes of Text; beyond them the request is refused
	membersMost = 1 << 16  // of the objects that are open in one value; likewise
	piecesMost  = 1 << 16  // that wait for settleOrder; beyond them it is called at once
	shortMost   = 64 << 10 // bytes of a model's name, a salt or an id, as the body spells them
	pieceBytes  = 64 << 10 // of a string that are read at once
)

// clip drops from Text the end of the string or list that begins at start and
// goes on to the end of Text, beyond the bytes that are kept.
func (r *Request) clip(start int) {
	if len(r.Text)-start > r.keep {
		r.cut(max(start+r.keep, 0))
	}
}

// cut drops Text[end:]. Marks end with it, for they are about text that is hashed.
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

// text appends the string at the cursor, up to the bytes that are kept.
func (r *Request) text() {
	if r.c.OpenString() {
		r.textFrom(len(r.Text))
	}
}

// textFrom appends the rest of the string that the cursor is in. Its text begins at start.
func (r *Request) textFrom(start int) {
	var ended bool
	r.Text, ended = r.c.AppendText(r.Text, r.c.Pos()+pieceBytes)
	for r.clip(start); !ended; r.clip(start) {
		r.room(start)
		r.Text, ended = r.c.AppendText(r.Text, r.c.Pos()+pieceBytes)
	}
}

// room makes room in Text, at once, for a string that turns out to be long. It begins at start.
func (r *Request) room(start int) {
	rest := min(r.c.Len()-r.c.Pos(), start+r.keep-len(r.Text))
	if cap(r.Text)-len(r.Text) < rest {
		r.Text = slices.Grow(r.Text, rest+2*pieceBytes)
	}
}

// number appends a number in its one spelling.
func (r *Request) number() {
	number := r.c.Number()
	if over := len(number) - r.keep; over > 0 {
		r.Omitted += over
		number = number[:r.keep]
	}
	r.Text = appendNumber(append(r.Text, markScalar), number)
}

// memberName appends the name of a member, up to the bytes that are kept.
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
