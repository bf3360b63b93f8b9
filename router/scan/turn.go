package scan

import (
	"bytes"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// These are the members of a message, or of an item of a Responses input, in canonical order.
const (
	turnRole uint8 = iota
	turnName
	turnToolCallID
	turnCallID
	turnContent
	turnOutput
	turnToolCalls
	turnFunctionCall
	turnArguments
	turnAudio
	turnType
	turnUnknown
)

var turnNames = [...]string{
	"role", "name", "tool_call_id", "call_id", "content", "output", "tool_calls", "function_call",
	"arguments", "audio", "type",
}

func turnMember(key []byte) uint8 {
	switch string(key) {
	case "role":
		return turnRole
	case "name":
		return turnName
	case "tool_call_id":
		return turnToolCallID
	case "call_id":
		return turnCallID
	case "content":
		return turnContent
	case "output":
		return turnOutput
	case "tool_calls":
		return turnToolCalls
	case "function_call":
		return turnFunctionCall
	case "arguments":
		return turnArguments
	case "audio":
		return turnAudio
	case "type":
		return turnType
	}
	return turnUnknown
}

// messages reads an array of messages.
func (r *Request) messages() {
	if r.c.Kind() != jsonscan.Array {
		r.wrong("an array of messages")
		return
	}
	r.at.index = 0
	r.root.framing.tokens += framedTalk
	r.turnsFrom(r.c.Array())
}

// turnsFrom reads the remaining messages; ok says that more messages follow.
func (r *Request) turnsFrom(ok bool) {
	for ; ok; ok = r.c.NextElement() {
		r.betweenTurns()
		r.turn()
		r.clip(r.rec.frame.text)
		r.at.index++
	}
	r.pass(r.c.Pos())
}

// turn reads one message.
func (r *Request) turn() {
	r.at.leaf = ""
	if r.c.Kind() != jsonscan.Object {
		r.wrong("an object with role and content")
		return
	}
	r.root.framing.tokens += framedTurn
	t := turn{base: len(r.order.segments), turnPlace: turnPlace{begin: len(r.Text)}}
	r.turnMembers(&t, r.c.Object())
	r.turnDone(&t)
}

// turn is the message being read.
type turn struct {
	turnPlace
	base int    // base of the message's pieces in order.segments
	kind []byte // type of the message
}

// turnPlace is the state of a message in a mark. turnPlace has no pointers.
type turnPlace struct {
	begin   int    // beginning of the message's text
	content int    // beginning of the content's text
	seen    uint16 // members of the message so far
	user    bool   // the role is known to be user
	kindAt  Span   // of the type in the body, unless the type has escapes
}

// turnDone ends a message.
func (r *Request) turnDone(t *turn) {
	if t.seen&(1<<turnRole) == 0 {
		start := len(r.Text)
		r.Text = append(append(r.Text, markMessage), t.kind...)
		r.push(turnRole, start)
	}
	r.arrange(t.base)
	r.settleOrder()
	if r.leads(t) {
		r.SystemHash = r.systemHash(t.begin)
	}
	if r.turns.state == noUserTurn && (t.user || t.begin >= 0 && isUser(r.Text[t.begin:])) {
		r.firstTurnRead(t.begin)
	}
}

// shortTurn is two blocks of the chain in bytes. A turn of shortTurn bytes contains a whole block,
// wherever the turn begins.
const shortTurn = 128

// firstTurnRead records the first user turn, Text[begin:]. Marks are recorded in the first turn
// only from shortTurn bytes on, so the whole text of a short turn is here.
func (r *Request) firstTurnRead(begin int) {
	r.turns = turnsRead{userTurnRead, len(r.Text)}
	if n := len(r.Text) - begin; n < shortTurn {
		r.ShortTurn, r.TurnHash = n, xxhash.Sum64(r.Text[begin:])
	}
}

// systemBytes is the length of the beginning of a system prompt that is hashed.
const systemBytes = 1024

// leads says whether t is the system prompt, and the beginning of its text is in Text.
func (r *Request) leads(t *turn) bool {
	return r.at.index == 0 && r.SystemHash == 0 && t.begin >= 0 && isSystem(r.Text[t.begin:])
}

// systemHash returns the hash of the system prompt that begins at begin.
func (r *Request) systemHash(begin int) uint64 {
	return xxhash.Sum64(r.Text[begin:min(begin+systemBytes, len(r.Text))])
}

// turnMembers reads the remaining members of a message; ok says that more members follow.
func (r *Request) turnMembers(t *turn, ok bool) {
	for ; ok; ok = r.c.NextMember() {
		m := turnMember(r.c.Key())
		if m == turnUnknown {
			r.unread()
			continue
		}
		r.at.leaf = turnNames[m]
		if t.seen&(1<<m) != 0 {
			r.twice(r.c.Pos())
			break
		}
		t.seen |= 1 << m
		if m == turnType {
			t.kind, t.kindAt = r.turnType()
			continue
		}
		start := len(r.Text)
		if m == turnContent {
			t.content = start
			r.content(t)
		} else {
			r.turnValue(m)
		}
		r.push(m, start)
	}
}

// isUser says whether a message begins with the role user.
func isUser(message []byte) bool { return begins(message, userTurn) }

// isSystem says whether a message begins with the role system or developer.
func isSystem(message []byte) bool {
	return begins(message, systemTurn) || begins(message, developerTurn)
}

// begins says whether a message begins with this mark and role.
func begins(message, turn []byte) bool {
	rest, ok := bytes.CutPrefix(message, turn)
	return ok && (len(rest) == 0 || isMark(rest[0]))
}

var userTurn, systemTurn, developerTurn = []byte("\xFFuser"), []byte("\xFFsystem"), []byte("\xFFdeveloper")

// isMark says whether b is a byte that UTF-8 text never contains.
func isMark(b byte) bool { return b == 0xC0 || b == 0xC1 || b >= 0xF5 }

// turnType reads the type of an item. The type replaces a missing role.
func (r *Request) turnType() ([]byte, Span) {
	if r.c.Kind() != jsonscan.String {
		r.c.Skip()
		return nil, Span{}
	}
	return r.stringMember()
}

func (r *Request) turnValue(m uint8) {
	switch m {
	case turnRole:
		if r.c.Kind() != jsonscan.String {
			r.wrong("a string such as \"user\"")
			return
		}
		r.marked(markMessage)
	case turnName:
		r.optional(markName)
	case turnToolCallID, turnCallID:
		r.optional(markID)
	case turnOutput:
		r.content(nil)
	case turnToolCalls:
		r.toolCalls()
	case turnFunctionCall:
		r.toolCall()
	case turnArguments:
		r.root.framing.tokens += framedTool
		r.value()
	case turnAudio:
		r.media()
	}
}

// toolCalls reads the calls in an assistant's message.
func (r *Request) toolCalls() {
	switch r.c.Kind() {
	case jsonscan.Null:
		r.c.Literal()
	case jsonscan.Array:
		start := len(r.Text)
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.toolCall()
			r.clip(start)
		}
	default:
		r.wrong("an array of tool calls")
	}
}

// These are the members of a tool call in canonical order; the function's own come first.
const (
	callFunction uint8 = iota
	callName
	callArguments
	callID
	callUnknown
)

func callMember(key []byte) uint8 {
	switch string(key) {
	case "function", "custom":
		return callFunction
	case "name":
		return callName
	case "arguments", "input":
		return callArguments
	case "id":
		return callID
	}
	return callUnknown
}

func (r *Request) toolCall() {
	switch r.c.Kind() {
	case jsonscan.Null:
		r.c.Literal()
	case jsonscan.Object:
		r.root.framing.tokens += framedTool
		r.Text = append(r.Text, markCall)
		r.callMembers()
	default:
		r.wrong("made of objects with id and function")
	}
}

// callMembers reads a call, or the function in it. Of a repeated member the first one counts.
func (r *Request) callMembers() {
	base := len(r.order.segments)
	var seen uint8
	for ok := r.c.Object(); ok; ok = r.c.NextMember() {
		m := callMember(r.c.Key())
		if m == callUnknown || seen&(1<<m) != 0 {
			r.unread()
			continue
		}
		seen |= 1 << m
		start := len(r.Text)
		r.callValue(m)
		r.push(m, start)
	}
	r.arrange(base)
}

func (r *Request) callValue(m uint8) {
	kind := r.c.Kind()
	switch {
	case m == callFunction && kind == jsonscan.Object:
		r.callMembers()
	case m == callName && kind == jsonscan.String:
		r.marked(markName)
	case m == callArguments:
		r.value()
	case m == callID && kind == jsonscan.String:
		r.marked(markID)
	default:
		r.unread()
	}
}
