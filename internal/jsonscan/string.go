package jsonscan

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf16"
	"unicode/utf8"
)

// String reads a string and returns the bytes between its quotes, which alias the document. If
// escaped is true, raw contains escapes.
func (c *Cursor) String() (raw []byte, escaped bool) {
	if c.space() != '"' {
		c.unexpected("expected a string")
		return nil, false
	}
	start := c.pos + 1
	for i := start; ; {
		i = c.run(i, len(c.buf))
		if i < 0 {
			return nil, false
		}
		if c.buf[i] == '"' {
			c.pos = i + 1
			return c.buf[start:i], escaped
		}
		escaped = true
		if i = c.escape(i); i < 0 {
			return nil, false
		}
	}
}

// AppendString reads a string and appends its decoded value to dst. A lone
// surrogate becomes U+FFFD, as in encoding/json.
func (c *Cursor) AppendString(dst []byte) []byte {
	if c.OpenString() {
		dst, _ = c.AppendText(dst, len(c.buf))
	}
	return dst
}

// OpenString enters a string. Read its text with AppendText.
func (c *Cursor) OpenString() bool {
	if c.space() != '"' {
		c.unexpected("expected a string")
		return false
	}
	c.pos++
	return true
}

// AppendText appends the decoded text of the string that the cursor is in, and reports whether the
// string has ended. AppendText stops between two characters near limit, an offset in the document,
// unless the document ends there.
func (c *Cursor) AppendText(dst []byte, limit int) (_ []byte, ended bool) {
	limit = min(limit, len(c.buf))
	for i := c.pos; ; {
		dst, i = c.unescape(dst, i, limit)
		if limit < len(c.buf) && i >= limit-2*margin {
			c.pos = i
			return dst, false
		}
		end := c.run(i, limit)
		if end < 0 {
			return dst, true
		}
		dst = append(dst, c.buf[i:end]...)
		if end >= limit {
			c.pos = end
			return dst, false
		}
		if c.buf[end] == '"' {
			c.pos = end + 1
			return dst, true
		}
		if i = c.escape(end); i < 0 {
			return dst, true
		}
		dst, i = appendEscape(dst, c.buf, end)
	}
}

// margin is how many bytes of a string are examined at once.
const margin = 32

// AppendUnescaped appends the decoded value of raw, which String returned.
func AppendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		end := i
		for end < len(raw) && raw[end] != '\\' {
			end++
		}
		dst = append(dst, raw[i:end]...)
		if i = end; i < len(raw) {
			dst, i = appendEscape(dst, raw, i)
		}
	}
	return dst
}

// appendUnescapedBounded is AppendUnescaped, but stops when dst is full.
func appendUnescapedBounded(dst, raw []byte) []byte {
	for i := 0; i < len(raw) && len(dst) <= cap(dst)-2*utf8.UTFMax; {
		if raw[i] == '\\' {
			dst, i = appendEscape(dst, raw, i)
		} else {
			dst = append(dst, raw[i])
			i++
		}
	}
	return dst
}

// Spells reports whether raw, which String or RawKey returned, decodes to name.
func Spells(raw []byte, name string) bool {
	if len(raw) < len(name) { // an escape is longer than its character, so raw is never shorter
		return false
	}
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			if name == "" || name[0] != raw[i] {
				return false
			}
			i, name = i+1, name[1:]
			continue
		}
		var character [utf8.UTFMax]byte
		one, next := appendEscape(character[:0], raw, i)
		if len(name) < len(one) || name[:len(one)] != string(one) {
			return false
		}
		i, name = next, name[len(one):]
	}
	return name == ""
}

const (
	ones    = 0x0101010101010101
	highs   = 0x8080808080808080
	spaces  = 0x2020202020202020
	quotes  = 0x2222222222222222
	slashes = 0x5c5c5c5c5c5c5c5c
)

// plain returns the index of the first byte at or after i that is a quote, a backslash, a control
// character or not ASCII; len(b) if there is none. plain tests eight bytes at once. A borrow can
// only mark bytes above the first match.
func plain(b []byte, i int) int {
	for i+8 <= len(b) {
		x := binary.LittleEndian.Uint64(b[i:])
		m := (((x ^ quotes) - ones) | ((x ^ slashes) - ones) | (x - spaces) | x) & highs
		if m != 0 {
			return i + bits.TrailingZeros64(m)>>3
		}
		i += 8
	}
	for i < len(b) && b[i] >= ' ' && b[i] != '"' && b[i] != '\\' && b[i] < utf8.RuneSelf {
		i++
	}
	return i
}

// run returns the index of the quote or backslash that ends the run of unescaped characters at i,
// or of the character at limit; -1 after a failure.
func (c *Cursor) run(i, limit int) int {
	for {
		i = plain(c.buf[:limit], i)
		if i >= limit {
			if limit < len(c.buf) {
				return i
			}
			c.Fail(limit, "a string has no closing quote")
			return -1
		}
		b := c.buf[i]
		if b == '"' || b == '\\' {
			return i
		}
		if b < ' ' {
			c.Fail(i, "a string holds a control character that must be escaped")
			return -1
		}
		for i < limit && c.buf[i] >= utf8.RuneSelf {
			r, n := utf8.DecodeRune(c.buf[i:])
			if r == utf8.RuneError && n == 1 {
				c.Fail(i, "a string holds invalid UTF-8")
				return -1
			}
			i += n
		}
	}
}

// escape checks the escape sequence at i and returns the index after it; -1 after a failure.
func (c *Cursor) escape(i int) int {
	if i+1 < len(c.buf) {
		switch c.buf[i+1] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			return i + 2
		case 'u':
			if _, ok := hex4(c.buf, i+2); ok {
				return i + 6
			}
		}
	}
	c.Fail(i, "a string holds an invalid escape sequence")
	return -1
}

// hex4 reads the four hex digits at i.
func hex4(b []byte, i int) (r rune, ok bool) {
	if i+4 > len(b) {
		return 0, false
	}
	for _, d := range b[i : i+4] {
		switch {
		case d-'0' <= 9:
			d -= '0'
		case (d|0x20) >= 'a' && (d|0x20) <= 'f':
			d = (d | 0x20) - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(d)
	}
	return r, true
}

// appendEscape decodes the valid escape sequence at i, with the second half of a surrogate pair if
// there is one. appendEscape returns the index after it.
func appendEscape(dst, b []byte, i int) ([]byte, int) {
	switch e := b[i+1]; e {
	case 'b':
		return append(dst, '\b'), i + 2
	case 'f':
		return append(dst, '\f'), i + 2
	case 'n':
		return append(dst, '\n'), i + 2
	case 'r':
		return append(dst, '\r'), i + 2
	case 't':
		return append(dst, '\t'), i + 2
	case 'u':
		r, _ := hex4(b, i+2)
		i += 6
		if utf16.IsSurrogate(r) {
			r, i = pair(r, b, i)
		}
		return utf8.AppendRune(dst, r), i
	default:
		return append(dst, e), i + 2
	}
}

// pair joins the surrogate high with the \u escape at i. If the two halves do not match, pair
// returns U+FFFD and does not advance i.
func pair(high rune, b []byte, i int) (rune, int) {
	if i+6 <= len(b) && b[i] == '\\' && b[i+1] == 'u' {
		low, _ := hex4(b, i+2)
		if r := utf16.DecodeRune(high, low); r != utf8.RuneError {
			return r, i + 6
		}
	}
	return utf8.RuneError, i
}
