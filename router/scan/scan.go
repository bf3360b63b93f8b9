package scan

import (
	"fmt"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// rootMember is a known member of the root object. Members that hold parts of the prompt are in the
// order of the canonical text.
type rootMember uint8

const (
	rootModel rootMember = iota
	rootStream
	rootStreamOptions
	rootMaxTokens
	rootMaxCompletionTokens
	rootMaxOutputTokens
	rootCacheSalt
	rootPreviousResponse
	rootNvext
	rootTransfer
	rootTools
	rootFunctions
	rootInstructions
	rootSystem
	rootMessages
	rootInput
	rootPrompt
	rootContent
	rootQuery
	rootQueries
	rootText1
	rootDocuments
	rootText2
	rootUnknown
)

var rootNames = [...]string{
	"model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "max_output_tokens", "cache_salt",
	"previous_response_id", "nvext", "kv_transfer_params", "tools", "functions", "instructions", "system", "messages",
	"input", "prompt", "content", "query", "queries", "text_1", "documents", "text_2", "",
}

func (m rootMember) String() string { return rootNames[m] }

// common members are read for every API.
const common = 1<<rootModel | 1<<rootStream | 1<<rootStreamOptions | 1<<rootMaxTokens | 1<<rootMaxCompletionTokens |
	1<<rootMaxOutputTokens | 1<<rootCacheSalt | 1<<rootPreviousResponse | 1<<rootNvext | 1<<rootTransfer

// promptMembers are the members that hold the prompt, for each API.
var promptMembers = [...]uint32{
	Chat:        1<<rootTools | 1<<rootFunctions | 1<<rootMessages,
	Completions: 1 << rootPrompt,
	Embeddings:  1<<rootInput | 1<<rootMessages,
	Responses:   1<<rootTools | 1<<rootInstructions | 1<<rootInput,
	Messages:    1<<rootTools | 1<<rootSystem | 1<<rootMessages,
	CountTokens: 1<<rootTools | 1<<rootSystem | 1<<rootMessages,
	Rerank:      1<<rootQuery | 1<<rootDocuments,
	Score:       1<<rootQueries | 1<<rootText1 | 1<<rootDocuments | 1<<rootText2,
	Tokenize:    1<<rootTools | 1<<rootMessages | 1<<rootPrompt | 1<<rootContent,
	Other:       0,
}

// rootOf returns the root member of a name. The compiler makes the switch a binary search over
// lengths and bytes.
func rootOf(key []byte) rootMember {
	switch string(key) {
	case "model":
		return rootModel
	case "stream":
		return rootStream
	case "stream_options":
		return rootStreamOptions
	case "max_tokens":
		return rootMaxTokens
	case "max_completion_tokens":
		return rootMaxCompletionTokens
	case "max_output_tokens":
		return rootMaxOutputTokens
	case "cache_salt":
		return rootCacheSalt
	case "previous_response_id":
		return rootPreviousResponse
	case "nvext":
		return rootNvext
	case "kv_transfer_params":
		return rootTransfer
	}
	return promptMemberOf(key)
}

func promptMemberOf(key []byte) rootMember {
	switch string(key) {
	case "tools":
		return rootTools
	case "functions":
		return rootFunctions
	case "instructions":
		return rootInstructions
	case "system":
		return rootSystem
	case "messages":
		return rootMessages
	case "input":
		return rootInput
	case "prompt":
		return rootPrompt
	case "content":
		return rootContent
	case "query":
		return rootQuery
	case "queries":
		return rootQueries
	case "text_1":
		return rootText1
	case "documents":
		return rootDocuments
	case "text_2":
		return rootText2
	}
	return rootUnknown
}

// Scan reads body as a request of the given API into r, which must be fresh or Reset. The body is
// borrowed: see Request. The error is an *Error; after an error r is only good for Reset. A reused
// Request is filled without allocating.
func Scan(api API, body []byte, r *Request) error {
	r.begin(api, 0)
	r.c.Reset(body, 0)
	r.at = place{index: -1}
	switch kind := r.c.Kind(); {
	case kind == jsonscan.Object:
		r.rootObject()
	case kind == jsonscan.Invalid && r.c.Pos() == len(body):
		r.fail(r.c.Pos(), CodeJSON, "the request body is empty; send a JSON object")
	case kind == jsonscan.Invalid:
		r.c.Skip()
	default:
		r.fail(r.c.Pos(), CodeType, "the request body must be a JSON object, not "+kind.String())
	}
	r.c.End()
	return r.finish()
}

// finish sorts the text and checks that no required member is missing.
func (r *Request) finish() error {
	if r.err == nil && !r.c.Failed() {
		r.followFirstTurn()
		r.arrangeRoot()
		r.settleOrder()
		r.settle()
		r.checkRequired()
	}
	if r.err != nil {
		return r.err
	}
	if r.c.Failed() {
		return syntaxError(r.c.Err())
	}
	return nil
}

// settle decides what only the whole body tells. The whole prompt is the first turn of a prompt
// without messages.
func (r *Request) settle() {
	if a := &r.root.answers; a.bound && !a.unbounded {
		r.MaxTokens = a.most
	}
	switch {
	case r.turns.state != noConversation:
	case len(r.Tokens) > 0:
		r.FirstTurn = 4 * len(r.Tokens)
	default:
		r.FirstTurn = r.Skipped + len(r.Text)
	}
}

func syntaxError(err error) *Error {
	e := err.(*jsonscan.Error)
	if e.Reason == jsonscan.TooDeep {
		message := fmt.Sprintf("the request body: %v; %d levels are read", e, jsonscan.DefaultMaxDepth)
		return &Error{Code: CodeTooLarge, Message: message, Offset: e.Offset}
	}
	return &Error{Code: CodeJSON, Message: "the request body is not valid JSON: " + e.Error(), Offset: e.Offset}
}

func (r *Request) rootObject() {
	r.root.membersAt, r.root.empty = r.c.Pos()+1, true
	r.rootMembers(r.c.Object())
}

// rootMembers reads the remaining members of the root; ok says that more members follow.
func (r *Request) rootMembers(ok bool) {
	for ; ok; ok = r.c.NextMember() {
		r.root.empty = false
		name := r.c.Key()
		key := rootOf(name)
		if (common|promptMembers[r.api])&(1<<key) == 0 {
			r.another(name)
			continue
		}
		r.at = place{field: key.String(), index: -1}
		if r.root.seen&(1<<key) != 0 {
			r.twice(r.c.Pos())
			return
		}
		r.root.seen |= 1 << key
		r.rootValue(key)
	}
}

func (r *Request) rootValue(key rootMember) {
	switch key {
	case rootModel:
		r.Model, r.root.model = r.stringMember()
	case rootStream:
		r.Stream = r.boolean()
	case rootStreamOptions:
		r.streamOptions()
	case rootMaxTokens, rootMaxCompletionTokens, rootMaxOutputTokens:
		r.maximum(binding[r.api]&(1<<key) != 0)
	case rootCacheSalt:
		r.CacheSalt, r.root.salt = r.stringMember()
	case rootPreviousResponse:
		r.PreviousResponseID, r.root.previous = r.stringMember()
	case rootNvext:
		r.nvext()
	case rootTransfer:
		r.root.transfer = r.anything()
	default:
		r.promptMember(key)
	}
}

// stringMember reads a short string or null. The value aliases the body. A value with escapes
// aliases scratch memory.
func (r *Request) stringMember() ([]byte, Span) {
	kind := r.c.Kind()
	at := Span{Start: r.c.Pos()}
	switch kind {
	case jsonscan.Null:
		r.c.Literal()
		at.End = r.c.Pos()
		return nil, at
	case jsonscan.String:
		raw, escaped := r.c.String()
		at.End = r.c.Pos()
		if len(raw) > shortMost {
			r.fail(at.Start, CodeTooLong,
				"`"+r.at.name()+"` is longer than "+strconv.Itoa(shortMost>>10)+" KiB; send a shorter one")
			return nil, Span{}
		}
		if !escaped {
			return raw, at
		}
		start := len(r.scratch.decoded)
		r.scratch.decoded = jsonscan.AppendUnescaped(r.scratch.decoded, raw)
		return r.decodedFrom(start), at
	}
	r.wrong("a string")
	return nil, Span{}
}

// nvext notes the place of an object, or of null. Package nvext reads the object.
func (r *Request) nvext() {
	if kind := r.c.Kind(); kind != jsonscan.Object && kind != jsonscan.Null {
		r.wrong("an object such as {\"agent_hints\": {\"osl\": 256}}")
		return
	}
	start := r.c.Pos()
	r.c.Skip()
	r.root.nvext = Span{start, r.c.Pos()}
}

// anything skips a value of any kind and returns its place.
func (r *Request) anything() Span {
	r.c.Kind()
	start := r.c.Pos()
	r.c.Skip()
	return Span{start, r.c.Pos()}
}

// decodedFrom returns the bytes added to scratch.decoded since start. Bytes returned before stay in
// the old buffer when scratch.decoded grows.
func (r *Request) decodedFrom(start int) []byte {
	d := r.scratch.decoded
	return d[start:len(d):len(d)]
}

// boolean reads true, false or null, which means false.
func (r *Request) boolean() bool {
	if kind := r.c.Kind(); kind != jsonscan.Bool && kind != jsonscan.Null {
		r.wrong("true or false")
		return false
	}
	return r.c.Literal()
}

func (r *Request) streamOptions() {
	o, start := &r.root.options, r.skipSpace()
	switch r.c.Kind() {
	case jsonscan.Null:
		r.c.Literal()
		o.kind = optionsNull
	case jsonscan.Object:
		o.kind, o.membersAt = optionsEmpty, start+1
		for ok := r.c.Object(); ok; ok = r.c.NextMember() {
			o.kind = optionsFilled
			r.streamOption()
		}
	default:
		r.wrong("an object such as {\"include_usage\": true}")
	}
	o.at = Span{start, r.c.Pos()}
}

func (r *Request) streamOption() {
	o := &r.root.options
	switch string(r.c.Key()) {
	case "include_usage":
		r.at.leaf = "include_usage"
		start := r.skipSpace()
		if o.usage != (Span{}) {
			r.twice(start)
			return
		}
		r.IncludeUsage = r.boolean()
		o.usage = Span{start, r.c.Pos()}
	case "continuous_usage_stats":
		r.at.leaf = "continuous_usage_stats"
		start := r.skipSpace()
		if o.continuous != (Span{}) {
			r.twice(start)
			return
		}
		r.c.Skip()
		o.continuous = Span{start, r.c.Pos()}
	default:
		r.c.Skip()
	}
}

// skipSpace returns the offset of the next value.
func (r *Request) skipSpace() int {
	r.c.Kind()
	return r.c.Pos()
}

// checkRequired refuses a body that no engine could answer.
func (r *Request) checkRequired() {
	const named = "name one of the models that GET /v1/models lists"
	if len(r.Model) == 0 && r.api != Tokenize && r.api != Detokenize {
		r.at = place{field: "model", index: -1}
		if r.Model == nil {
			r.fail(0, CodeMissing, "`model` is missing; "+named)
		} else {
			r.fail(r.root.model.Start, CodeValue, "`model` is empty; "+named)
		}
	}
	needsMessages := r.api == Chat || r.api == Messages || r.api == CountTokens
	if needsMessages && r.root.seen&(1<<rootMessages) == 0 {
		r.at = place{field: "messages", index: -1}
		r.fail(0, CodeMissing, "`messages` is missing; send the conversation as a list of messages")
	}
}
