// Package jsonscan reads JSON (RFC 8259) in place: one Cursor walks the bytes
// of a document, hands out slices of it and allocates nothing.
//
// The cursor also validates everything that it passes over: literals, numbers, escapes, control
// characters, UTF-8 and nesting. The cursor accepts the same documents as encoding/json, except
// those with invalid UTF-8 or with nesting beyond the cursor's bound.
//
// The first failure moves the cursor to the end of the document, so that every loop ends. Err
// returns it from then on.
//
//	c := jsonscan.New(doc)
//	for ok := c.Object(); ok; ok = c.NextMember() {
//		switch string(c.Key()) {
//		case "model":
//			model, escaped = c.String()
//		default:
//			c.Skip()
//		}
//	}
//	c.End()
//	err := c.Err()
package jsonscan

import "strconv"

// DefaultMaxDepth is the nesting of arrays and objects that New allows.
const DefaultMaxDepth = 128

// TooDeep is the Reason of an Error about nesting beyond the bound.
const TooDeep = "arrays and objects are nested too deeply"

// Kind is the type of a JSON value, determined by its first byte.
type Kind uint8

// The kinds of values. Invalid is the end of the document, or a byte that starts no value.
const (
	Invalid Kind = iota
	Null
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{
	"nothing", "null", "a boolean", "a number", "a string", "an array", "an object",
}

// String names the kind with its article, for messages: "a string".
func (k Kind) String() string { return kindNames[k] }

// Error says where and why a document is not acceptable JSON.
type Error struct {
	Offset int    // byte offset in the document
	Reason string // without the offset
}

func (e *Error) Error() string { return e.Reason + " at byte " + strconv.Itoa(e.Offset) }

// Cursor is a position in one document. The zero Cursor has an empty document;
// use New or Reset. A Cursor is not safe for concurrent use.
type Cursor struct {
	buf      []byte
	pos      int
	depth    int
	maxDepth int
	bad      Error
	careful  bool // the document contains bytes that are not UTF-8
	key      [maxKey]byte
}

// maxKey is the longest key with escapes that Key can decode.
const maxKey = 64

// New returns a cursor at the start of doc. The cursor borrows doc.
func New(doc []byte) Cursor { return Cursor{buf: doc, maxDepth: DefaultMaxDepth} }

// Reset moves the cursor to the start of another document, which it borrows until the next Reset. A
// maxDepth of 0 means DefaultMaxDepth.
func (c *Cursor) Reset(doc []byte, maxDepth int) {
	if maxDepth == 0 {
		maxDepth = DefaultMaxDepth
	}
	c.buf, c.pos, c.depth, c.maxDepth, c.bad, c.careful = doc, 0, 0, maxDepth, Error{}, false
}

// Resume moves the cursor into the middle of doc, which it borrows. pos and depth are another
// cursor's Pos and Depth in a document with the same bytes before pos.
func (c *Cursor) Resume(doc []byte, pos, depth int) {
	c.Reset(doc, 0)
	c.pos, c.depth = pos, depth
}

// Depth returns the number of open arrays and objects.
func (c *Cursor) Depth() int { return c.depth }

// Pos returns the offset of the next byte to read.
func (c *Cursor) Pos() int { return c.pos }

// Len returns the length of the document.
func (c *Cursor) Len() int { return len(c.buf) }

// Failed reports whether an earlier call has failed.
func (c *Cursor) Failed() bool { return c.bad.Reason != "" }

// Err returns the first failure as an *Error, or nil.
func (c *Cursor) Err() error {
	if !c.Failed() {
		return nil
	}
	e := c.bad
	return &e
}

// Fail records a failure unless there is one already, and ends the walk.
func (c *Cursor) Fail(offset int, reason string) {
	if c.bad.Reason == "" {
		c.bad = Error{Offset: offset, Reason: reason}
	}
	c.pos = len(c.buf)
}

// unexpected fails with reason at the current byte, or reports the end of the document.
func (c *Cursor) unexpected(reason string) {
	if c.pos >= len(c.buf) {
		reason = "unexpected end of the document"
	}
	c.Fail(c.pos, reason)
}

// space moves to the next byte that is not white space and returns it; 0 at the end.
func (c *Cursor) space() byte {
	for c.pos < len(c.buf) {
		b := c.buf[c.pos]
		if b > ' ' || b != ' ' && b != '\n' && b != '\t' && b != '\r' {
			return b
		}
		c.pos++
	}
	return 0
}

// Kind moves to the next value and returns its kind without reading it.
func (c *Cursor) Kind() Kind {
	switch b := c.space(); b {
	case '{':
		return Object
	case '[':
		return Array
	case '"':
		return String
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	default:
		if b == '-' || b >= '0' && b <= '9' {
			return Number
		}
		return Invalid
	}
}

// Object enters an object and reports whether it has a member. The caller reads
// Key and the value, then asks NextMember.
func (c *Cursor) Object() bool { return c.open('{', '}', "expected an object") }

// Array enters an array and reports whether it has an element. The caller reads
// the value, then asks NextElement.
func (c *Cursor) Array() bool { return c.open('[', ']', "expected an array") }

// NextMember reports whether the object has another member. After the last member, NextMember
// leaves the object.
func (c *Cursor) NextMember() bool {
	return c.next('}', "expected a comma or the end of the object")
}

// NextElement reports whether the array has another element. After the last element, NextElement
// leaves the array.
func (c *Cursor) NextElement() bool {
	return c.next(']', "expected a comma or the end of the array")
}

func (c *Cursor) open(first, last byte, reason string) bool {
	if c.space() != first {
		c.unexpected(reason)
		return false
	}
	if c.depth == c.maxDepth {
		c.Fail(c.pos, TooDeep)
		return false
	}
	c.depth++
	c.pos++
	if c.space() == last {
		c.depth--
		c.pos++
		return false
	}
	return c.pos < len(c.buf) || c.ended()
}

func (c *Cursor) next(last byte, reason string) bool {
	switch c.space() {
	case ',':
		c.pos++
		return true
	case last:
		c.pos++
		c.depth--
		return false
	}
	c.unexpected(reason)
	return false
}

// ended fails because the document ends inside an array or object.
func (c *Cursor) ended() bool {
	c.unexpected("")
	return false
}

// Key reads a member's name and the colon. The result is valid until the next Key. The result
// aliases the document, or the cursor if the name has escapes. A name with escapes is cut after 64
// bytes, so it never equals a longer name.
func (c *Cursor) Key() []byte {
	if c.space() != '"' {
		c.unexpected("expected a member name in double quotes")
		return nil
	}
	raw, escaped := c.String()
	if escaped {
		raw = appendUnescapedBounded(c.key[:0], raw)
	}
	c.Colon()
	return raw
}

// AppendKey is Key for names of any length. AppendKey appends the decoded name to dst.
func (c *Cursor) AppendKey(dst []byte) []byte {
	if c.OpenKey() {
		dst, _ = c.AppendText(dst, len(c.buf))
		c.Colon()
	}
	return dst
}

// OpenKey enters a member's name. Read its text with AppendText, then call Colon.
func (c *Cursor) OpenKey() bool {
	if c.space() != '"' {
		c.unexpected("expected a member name in double quotes")
		return false
	}
	c.pos++
	return true
}

// RawKey reads a member's name and the colon. Like String, RawKey returns the bytes between the
// quotes. Spells compares these bytes with a name.
func (c *Cursor) RawKey() []byte {
	if c.space() != '"' {
		c.unexpected("expected a member name in double quotes")
		return nil
	}
	raw, _ := c.String()
	c.Colon()
	return raw
}

// Colon passes over the colon after a member's name.
func (c *Cursor) Colon() {
	if c.space() != ':' {
		c.unexpected("expected a colon after the member name")
		return
	}
	c.pos++
}

// End checks that only white space follows the last value.
func (c *Cursor) End() {
	if c.space(); c.pos < len(c.buf) {
		c.Fail(c.pos, "unexpected bytes after the end of the document")
	}
}

// Skip passes over the next value of any kind, and validates it.
func (c *Cursor) Skip() {
	switch c.Kind() {
	case Object:
		for ok := c.Object(); ok; ok = c.NextMember() {
			c.RawKey()
			c.Skip()
		}
	case Array:
		for ok := c.Array(); ok; ok = c.NextElement() {
			c.Skip()
		}
	case String:
		c.String()
	case Number:
		c.Number()
	case Null, Bool:
		c.Literal()
	default:
		c.unexpected("expected a value")
	}
}
