package scan

import (
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// API is the kind of request: which members hold the prompt, and in which
// envelope errors are answered.
type API uint8

// The APIs. Other stands for any endpoint of which only the model is known.
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

// Span is a half-open byte range of the body; the zero Span means absent.
type Span struct{ Start, End int }

// Error says what is wrong with a body, in words for the client.
type Error struct {
	Param   string // the member at fault, such as messages[3].content; empty where it is the body
	Message string // names the member and the fix
	Offset  int    // byte offset in the body
}

func (e *Error) Error() string { return e.Message + " (at byte " + strconv.Itoa(e.Offset) + ")" }

// Request is what a scan found. It is filled by Scan or ScanMultipart, reused
// after Reset, and not safe for concurrent use. Model, CacheSalt and
// PreviousResponseID alias the body or scratch memory: they are valid until the
// next Reset and while the body stays. A Request may be copied, not used twice.
type Request struct {
	Model     []byte // decoded
	ModelSpan Span   // the JSON string with its quotes (or null); in a multipart body the plain value

	Stream        bool
	StreamOptions Span // the value of stream_options, also where it is null
	IncludeUsage  bool // stream_options.include_usage is true

	MembersAt int  // offset just after the root's opening brace
	Empty     bool // the root has no members

	MaxTokens                     int64 // max_completion_tokens, max_tokens or max_output_tokens; 0 = absent
	CacheSalt, PreviousResponseID []byte

	Text      []byte // canonical prompt text, less what Skipped says; owned by the Request
	Skipped   int    // bytes of the canonical text after the first Head of Text that were passed over, see Memo
	Head      int
	Media     int      // images, audio, videos and files in it: an engine counts many tokens for each
	Tokens    []uint32 // the prompt where it was given as token ids; Text is empty then
	FirstTurn int      // bytes of the canonical text, or 4 for each of Tokens, up to the end of the first user turn; 0 = none
	ShortTurn int      // bytes of the first user turn where they are fewer than two of the chain's blocks, so that it may have no whole one; 0 = they are more, or there is none
	TurnHash  uint64   // of such a turn's canonical text

	c        jsonscan.Cursor
	err      *Error
	api      API
	seen     uint32 // root members met, by rootMember
	form     bool   // the body is multipart, values are not JSON
	plain    bool   // the prompt is no conversation
	at       place
	options  optionSpans
	decoded  []byte // unescaped model, salt and response id, edit scratch
	spare    []byte // for moving pieces of Text
	pad      []byte // last buffer of a media hash
	segments []segment
	members  []member
	pieces   []piece
	shuffles []shuffle

	turned    bool // the first user turn has been read
	turnEnd   int  // and ends here in Text
	salt      Span // of CacheSalt, PreviousResponseID
	previous  Span
	recording // what Memo needs
}

// optionSpans is where stream_options can be edited.
type optionSpans struct {
	null       bool
	empty      bool
	membersAt  int
	usage      Span // the value of include_usage
	continuous Span // the value of continuous_usage_stats
}

// place is where the scan is, for messages to the client.
type place struct {
	field string // root member
	index int    // element of its array, -1 outside
	leaf  string // member of the element
}

// keepBytes bounds the scratch memory that survives a Reset, for each buffer.
const keepBytes = 4 << 20

// Reset forgets the last request and its body, and keeps the scratch memory, of
// which buffers above 4 MiB are dropped.
func (r *Request) Reset() {
	*r = Request{
		Text: kept(r.Text, 1), Tokens: kept(r.Tokens, 4), decoded: kept(r.decoded, 1), spare: kept(r.spare, 1), pad: r.pad,
		segments: kept(r.segments, 24), members: kept(r.members, 24),
		pieces: kept(r.pieces, 16), shuffles: kept(r.shuffles, 32),
		recording: recording{marks: kept(r.marks, markBytes), hashes: kept(r.hashes, 8)},
	}
}

// kept empties a buffer for the next request, or drops it where it is too large.
func kept[T any](b []T, size int) []T {
	if cap(b)*size > keepBytes {
		return nil
	}
	return b[:0]
}

// name spells the place as errors do: messages[3].content.
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

// fail ends the scan because of what the member at r.at is. A syntax error that
// the cursor has met already is the better explanation and stays.
func (r *Request) fail(offset int, message string) {
	if r.err == nil && !r.c.Failed() {
		r.err = &Error{Param: r.at.name(), Message: message, Offset: offset}
	}
	r.c.Fail(offset, "not acceptable")
}

// wrong ends the scan because the value at the cursor is not what it must be,
// unless it is not even JSON.
func (r *Request) wrong(want string) {
	kind := r.c.Kind()
	offset := r.c.Pos()
	if r.c.Skip(); !r.c.Failed() {
		r.fail(offset, "`"+r.at.name()+"` must be "+want+", not "+kind.String())
	}
}

func (r *Request) twice(offset int) {
	r.fail(offset, "`"+r.at.name()+"` appears twice; send it once")
}
