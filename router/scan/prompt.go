package scan

import (
	"math"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// markNext separates the prompts of a list.
const markNext = 0xFF

// promptMember reads a root member that holds a part of the prompt.
func (r *Request) promptMember(m rootMember) {
	start := len(r.Text)
	if r.c.Kind() == jsonscan.Null && m != rootMessages {
		r.c.Literal()
		return
	}
	switch m {
	case rootTools, rootFunctions:
		r.definitions()
	case rootInstructions, rootSystem:
		r.Text = append(append(r.Text, markMessage), "system"...)
		r.content(nil)
	case rootMessages:
		r.within(m, start)
		r.turns()
	case rootInput:
		r.within(m, start)
		r.input()
	case rootPrompt, rootContent:
		r.within(m, start)
		r.prompts()
	default:
		r.plain = true
		r.texts()
	}
	r.promptMemberEnd(m, start)
}

func (r *Request) promptMemberEnd(m rootMember, start int) {
	r.settleOrder()
	r.push(uint8(m), start)
	r.frame.open = false
}

// definitions reads the list of tools or functions.
func (r *Request) definitions() {
	if r.c.Kind() != jsonscan.Array {
		r.wrong("an array of definitions")
		return
	}
	for ok := r.c.Array(); ok; ok = r.c.NextElement() {
		if r.c.Kind() != jsonscan.Object {
			r.wrong("an array of objects")
			return
		}
		r.value()
	}
}

// input reads the input of a Responses request, a conversation, or that of an embedding.
func (r *Request) input() {
	if r.api != Responses {
		r.prompts()
		return
	}
	switch r.c.Kind() {
	case jsonscan.String:
		start := len(r.Text)
		r.Text = append(append(r.Text, markMessage), "user"...)
		r.marked(markText)
		r.firstTurnRead(start)
	case jsonscan.Array:
		r.turns()
	default:
		r.wrong("a string or an array of items")
	}
}

// prompts reads a string, a list of strings, token ids, or lists of token ids.
func (r *Request) prompts() {
	r.plain = true
	switch r.c.Kind() {
	case jsonscan.String:
		if r.c.OpenString() {
			r.longText(inText{at: inPrompt})
		}
	case jsonscan.Array:
		var kind jsonscan.Kind
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			kind = r.prompt(kind)
		}
	default:
		r.wrongPrompt()
	}
}

// prompt reads one element of a list of prompts, which is of the same kind as
// the one before; Invalid stands before the first. It returns the kind.
func (r *Request) prompt(before jsonscan.Kind) jsonscan.Kind {
	kind := r.c.Kind()
	switch {
	case before != jsonscan.Invalid && before != kind:
		r.wrongPrompt()
	case kind == jsonscan.Number:
		r.token()
	case kind == jsonscan.Array:
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.token()
		}
	case kind == jsonscan.String:
		if before != jsonscan.Invalid {
			r.Text = append(r.Text, markNext)
		}
		r.Text = r.c.AppendString(r.Text)
	case kind == jsonscan.Object && r.api == Embeddings:
		r.value()
	default:
		r.wrongPrompt()
	}
	return kind
}

func (r *Request) wrongPrompt() {
	r.wrong("a string, a list of strings, a list of token ids or a list of such lists")
}

func (r *Request) token() {
	start := r.skipSpace()
	if r.c.Kind() != jsonscan.Number {
		r.wrongPrompt()
		return
	}
	id, ok := r.c.Int()
	if !ok || id < 0 || id > math.MaxUint32 {
		r.fail(start, "`"+r.at.name()+"` holds a token id that is no whole number from 0 to 4294967295")
		return
	}
	r.Tokens = append(r.Tokens, uint32(id))
}

// texts reads what rerank and score compare: a string, an object, or a list of them.
func (r *Request) texts() {
	switch r.c.Kind() {
	case jsonscan.Array:
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.text()
		}
	default:
		r.text()
	}
}

func (r *Request) text() {
	switch r.c.Kind() {
	case jsonscan.String:
		r.marked(markText)
	case jsonscan.Object:
		r.value()
	default:
		r.wrong("a string, an object or a list of them")
	}
}
