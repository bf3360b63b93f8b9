package scan

import "github.com/cognitora/dataplane/internal/jsonscan"

// MarkNext separates the prompts of a list in the canonical text.
const MarkNext = 0xFF

// promptMember reads a root member that holds part of the prompt.
func (r *Request) promptMember(m rootMember) {
	if r.c.Kind() == jsonscan.Null && m != rootMessages {
		r.c.Literal()
		return
	}
	start, before := len(r.Text), len(r.Text)+r.Omitted
	r.rec.frame = frame{member: m, text: start, at: r.c.Pos()}
	switch m {
	case rootTools, rootFunctions:
		r.definitions()
	case rootInstructions, rootSystem:
		r.root.framing.tokens += framedTurn
		r.Text = append(append(r.Text, markMessage), "system"...)
		r.content(nil)
		r.settleOrder()
		r.SystemHash = r.systemHash(start)
	case rootMessages:
		r.messages()
	case rootInput:
		r.input()
	case rootPrompt, rootContent:
		r.prompts()
	default:
		r.turns.state = noConversation
		r.texts()
		r.root.framing.compared[side(m)].bytes += int64(len(r.Text) + r.Omitted - before)
	}
	r.promptMemberEnd()
}

// promptMemberEnd ends the member in rec.frame.
func (r *Request) promptMemberEnd() {
	f, end := &r.rec.frame, r.c.Pos()
	if end-f.at > r.root.longest.End-r.root.longest.Start {
		r.root.longest = Span{f.at, end}
	}
	r.settleOrder()
	r.push(uint8(f.member), f.text)
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
		r.root.framing.tokens += framedTool
		r.value()
		r.clip(r.rec.frame.text)
	}
}

// input reads the input of a Responses request (a conversation) or of an embedding.
func (r *Request) input() {
	if r.api != Responses {
		r.prompts()
		return
	}
	switch r.c.Kind() {
	case jsonscan.String:
		r.root.framing.tokens += framedTalk + framedTurn
		start := len(r.Text)
		r.Text = append(append(r.Text, markMessage), "user"...)
		r.marked(markText)
		r.firstTurnRead(start)
	case jsonscan.Array:
		r.messages()
	default:
		r.wrong("a string or an array of items")
	}
}

// prompts reads a string, a list of strings, token ids, or lists of token ids.
func (r *Request) prompts() {
	r.turns.state = noConversation
	switch r.c.Kind() {
	case jsonscan.String:
		r.root.framing.tokens += framedPrompt
		if r.c.OpenString() {
			r.longText(len(r.Text), inText{at: inPrompt})
		}
	case jsonscan.Array:
		var kind jsonscan.Kind
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			kind = r.prompt(kind)
			r.clip(r.rec.frame.text)
		}
	default:
		r.wrongPrompt()
	}
}

// prompt reads one element of a list of prompts. before is the kind of the preceding element, and
// every element must have the same kind. For the first element before is Invalid. prompt returns
// the kind.
func (r *Request) prompt(before jsonscan.Kind) jsonscan.Kind {
	kind := r.c.Kind()
	switch {
	case before != jsonscan.Invalid && before != kind:
		r.wrongPrompt()
	case kind == jsonscan.Number:
		r.token()
	case kind == jsonscan.Array:
		r.root.answers.prompts++
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.token()
		}
	case kind == jsonscan.String:
		r.root.answers.prompts++
		r.root.framing.tokens += framedPrompt
		if before != jsonscan.Invalid {
			r.Text = append(r.Text, MarkNext)
		}
		r.text()
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

// texts reads the texts that rerank and score compare: one text, or a list.
func (r *Request) texts() {
	switch r.c.Kind() {
	case jsonscan.Array:
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.compared()
			r.clip(r.rec.frame.text)
		}
	default:
		r.compared()
	}
}

// compared reads one text to compare: a string or an object.
func (r *Request) compared() {
	r.root.framing.compared[side(r.rec.frame.member)].texts++
	switch r.c.Kind() {
	case jsonscan.String:
		r.marked(markText)
	case jsonscan.Object:
		r.value()
	default:
		r.wrong("a string, an object or a list of them")
	}
}
