package scan

import (
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// API is the kind of a request. API decides which members hold the prompt and which envelope errors
// have.
type API uint8

// These are the APIs. Other is any endpoint for which only the model is known.
const (
	Chat API = iota
	Completions
	Embeddings
	Responses
	Messages // Anthropic
	CountTokens
	Rerank
	Score
	Tokenize
	Detokenize
	Audio
	Other
)

var apiNames = [...]string{
	"chat", "completions", "embeddings", "responses", "messages", "count_tokens",
	"rerank", "score", "tokenize", "detokenize", "audio", "other",
}

// String is the API's name in metrics and logs.
func (a API) String() string { return apiNames[a] }

// Span is a half-open byte range of the body. The zero Span means absent.
type Span struct{ Start, End int }

// Error describes a problem with a body, in words for the client.
type Error struct {
	Code    string // one of the Code constants
	Param   string // the faulty member, such as messages[3].content; empty for the body itself
	Message string // names the member and the fix
	Offset  int    // byte offset in the body
}

// These are the codes of Error, in OpenAI's words if it has one.
const (
	CodeJSON      = "invalid_json"               // the body is no JSON
	CodeMultipart = "invalid_multipart"          // the body is no multipart/form-data
	CodeMissing   = "missing_required_parameter" // a member that every request needs is absent
	CodeType      = "invalid_type"               // a member is of another JSON type
	CodeValue     = "invalid_value"              // a member has an impossible value, or is sent twice
	CodeUnknown   = "unknown_parameter"          // a member of an object whose members are all known is none of them
	CodeTooLong   = "string_above_max_length"    // a string exceeds its limit
	CodeTooLarge  = "request_too_complex"        // a member exceeds the limit on levels, members or text
)

func (e *Error) Error() string { return e.Message + " (at byte " + strconv.Itoa(e.Offset) + ")" }

// Request is the result of a scan. Scan or ScanMultipart fills a Request; Reset makes a Request
// reusable. Request is not safe for concurrent use. Model, CacheSalt and PreviousResponseID alias
// the body or scratch memory. These fields are valid until the next Reset and while the body
// exists. A Request may be copied, but the copy and the original must not both be used again.
type Request struct {
	Model, CacheSalt, PreviousResponseID []byte // decoded

	// Space keeps what a Memo knows of the bodies of one client apart from those of others. Set it
	// before the scan; 0: all share one space.
	Space uint64

	Stream       bool
	IncludeUsage bool  // stream_options.include_usage is true
	MaxTokens    int64 // the largest maximum of an answer; 0 = none that every engine obeys

	Prompt

	c       jsonscan.Cursor
	err     *Error
	api     API
	form    bool // the body is multipart; its values are not JSON
	at      place
	root    root
	turns   turnsRead
	order   order
	scratch scratch
	index   index
	rec     recording
	keep    int // bytes of a string or list kept in Text
}

// Prompt is the prompt of a request, as text or as token ids.
type Prompt struct {
	// Text is the canonical prompt text, owned by the Request. Text lacks Skipped bytes after the
	// first Head (see Memo). Text lacks Omitted bytes somewhere behind the first TextKept bytes of
	// the prompt.
	Text                   []byte
	Head, Skipped, Omitted int

	Tokens []uint32 // a prompt given as token ids, at most TokensKept; Text is empty then
	Media  int      // images, audio, videos and files; an engine counts many tokens for each

	// FirstTurn is the length of the prompt up to the end of the first user turn, in bytes of Text,
	// or 4 for each of Tokens. 0 means that there is no user turn.
	FirstTurn int
	// ShortTurn is the length of a first user turn shorter than two blocks, which may have no whole
	// block of the chain. 0 means that the first user turn is longer or absent.
	ShortTurn int
	TurnHash  uint64 // hash of a short turn's canonical text
	// SystemHash is the hash of the beginning of the system prompt's canonical text. The system
	// prompt is the root member system or instructions, or else a first message of the role system
	// or developer. 0 means that there is none.
	SystemHash uint64
}

// root is the scan's state of the root and its members. root has no pointers, so it can be part of
// a mark.
type root struct {
	seen      uint32 // members so far, by rootMember
	empty     bool   // the root has no members
	transfers bool   // there are members of TransferMembers other than kv_transfer_params
	priority  bool   // there is a member priority
	asked     asked  // what members ask of the prompt
	answers   answers
	framing   framing
	membersAt int  // offset just after the root's opening brace
	model     Span // the JSON string with its quotes, or null; in a form the plain value
	salt      Span
	previous  Span
	nvext     Span // an object or null
	transfer  Span // the value of kv_transfer_params
	options   options
	longest   Span // value of the longest member that holds part of the prompt
}

// options describes stream_options and the places to edit.
type options struct {
	kind       optionsKind
	at         Span
	membersAt  int
	usage      Span // value of include_usage
	continuous Span // value of continuous_usage_stats
}

type optionsKind uint8

const (
	optionsAbsent optionsKind = iota
	optionsNull
	optionsEmpty  // an object without members
	optionsFilled // an object with members
)

// turnsRead is the progress of the search for the first user turn.
type turnsRead struct {
	state turnsState
	end   int // end of the first user turn in Text
}

type turnsState uint8

const (
	noUserTurn turnsState = iota // no user turn so far
	userTurnRead
	noConversation // the prompt is plain text and counts as one turn
)

// place is the scan's position, for error messages.
type place struct {
	field string // root member
	index int    // index in the array, -1 outside
	leaf  string // member of the element
}

// scratch is memory that a Request keeps for the next scan.
type scratch struct {
	decoded []byte // unescaped model, salt and response id
	spare   []byte // for moving pieces of Text, and for a piece of a media string
	pad     []byte // last buffer of a media hash
}

// Nvext returns the place of the member nvext in the body: an object or null. The zero Span means
// that the body has no such member.
func (r *Request) Nvext() Span { return r.root.nvext }

// Transfer returns the place of the value of the member kv_transfer_params in the body. The zero
// Span means that the body has no such member.
func (r *Request) Transfer() Span { return r.root.transfer }

// TransferMembers are the members by which engines hand over KV blocks.
var TransferMembers = [...]string{
	"kv_transfer_params", "ec_transfer_params", "disaggregated_params",
	"bootstrap_host", "bootstrap_port", "bootstrap_room",
}

// Transfers says whether the body has some of TransferMembers.
func (r *Request) Transfers() bool { return r.root.transfers || r.root.transfer != (Span{}) }

// Priority says whether the body has a member priority, by which engines order their queues.
func (r *Request) Priority() bool { return r.root.priority }

// Form says whether the body is a form, whose members have no names in JSON.
func (r *Request) Form() bool { return r.form }

// keepBytes bounds each buffer that survives a Reset.
const keepBytes = 4 << 20

// Reset forgets the last request and its body. Reset keeps the scratch memory, except buffers above
// 4 MiB.
func (r *Request) Reset() {
	*r = Request{
		Prompt: Prompt{Text: kept(r.Text, 1), Tokens: kept(r.Tokens, 4)},
		scratch: scratch{
			decoded: kept(r.scratch.decoded, 1), spare: kept(r.scratch.spare, 1), pad: r.scratch.pad[:0],
		},
		order: order{
			segments: kept(r.order.segments, 24), members: kept(r.order.members, 24),
			pieces: kept(r.order.pieces, 16), shuffles: kept(r.order.shuffles, 32),
		},
		index: index{entries: r.index.entries[:0]},
		rec:   recording{marks: kept(r.rec.marks, markBytes), hashes: kept(r.rec.hashes, 8)},
	}
}

// kept empties a buffer for the next request, or drops it if it is too large.
func kept[T any](b []T, size int) []T {
	if cap(b)*size > keepBytes {
		return nil
	}
	return b[:0]
}

// name returns the place as errors name it: messages[3].content.
func (p place) name() string {
	s := p.field
	if p.index >= 0 {
		s += "[" + strconv.Itoa(p.index) + "]"
	}
	if p.leaf != "" {
		s += "." + p.leaf
	}
	return s
}

// fail ends the scan because of the member at r.at. A syntax error found earlier stays, because it
// explains more.
func (r *Request) fail(offset int, code, message string) {
	if r.err == nil && !r.c.Failed() {
		r.err = &Error{Code: code, Param: r.at.name(), Message: message, Offset: offset}
	}
	r.c.Fail(offset, "not acceptable")
}

// wrong ends the scan because the value at the cursor has the wrong kind, or is not JSON.
func (r *Request) wrong(want string) {
	kind := r.c.Kind()
	offset := r.c.Pos()
	if r.c.Skip(); !r.c.Failed() {
		r.fail(offset, CodeType, "`"+r.at.name()+"` must be "+want+", not "+kind.String())
	}
}

func (r *Request) twice(offset int) {
	r.fail(offset, CodeValue, "`"+r.at.name()+"` appears twice; send it once")
}
