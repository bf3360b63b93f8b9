package relay

import (
	"bytes"
)

// Bounds of a response head. A head beyond these bounds is a protocol error.
const (
	maxHeadBytes    = 64 << 10 // status line and header fields, including interim responses
	maxHeaderFields = 256
)

// Content lengths that do not mean a number of bytes.
const (
	lengthChunked    = -1
	lengthUntilClose = -2
)

const (
	errStatusLine  = protocolError("bad status line")
	errHeaderLine  = protocolError("bad header line")
	errHeaderFold  = protocolError("folded header line")
	errHeadTooLong = protocolError("response head too long")
	errFieldCount  = protocolError("too many header fields")
	errLength      = protocolError("bad Content-Length")
	errLengths     = protocolError("conflicting Content-Length fields")
	errBothLengths = protocolError("both Content-Length and Transfer-Encoding")
	errCoding      = protocolError("unsupported Transfer-Encoding")
	errSwitching   = protocolError("unexpected 101 Switching Protocols")
)

// field holds the position of one header field in the parsed buffer.
type field struct{ name, nameEnd, value, valueEnd uint32 }

// head parses one response head, push-style. Call parse with the same buffer, each time with more
// bytes, until parse reports done. head skips interim (1xx) responses. Lines may end in CRLF or LF.
// head's offsets refer to the buffer. The buffer may move between calls, but its contents must not
// change.
type head struct {
	fields    []field
	line      int // start of the current line
	scanned   int // [line, scanned) has no line end
	status    int
	length    int64 // declared length; -1: chunked; -2: not declared
	inFields  bool  // the status line has been parsed
	hasLength bool
	http10    bool
	keepAlive bool // has Connection: keep-alive
	close     bool // has Connection: close
}

func (h *head) reset() {
	*h = head{fields: h.fields[:0], length: lengthUntilClose}
}

// parse continues where the last call stopped. When done, h.line is the offset of the first body
// byte.
func (h *head) parse(buf []byte) (done bool, err error) {
	for {
		i := bytes.IndexByte(buf[h.scanned:], '\n')
		if i < 0 {
			if h.scanned = len(buf); len(buf) >= maxHeadBytes {
				return false, errHeadTooLong
			}
			return false, nil
		}
		start, end := h.line, h.scanned+i
		h.line, h.scanned = end+1, end+1
		if end >= maxHeadBytes {
			return false, errHeadTooLong
		}
		if end > start && buf[end-1] == '\r' {
			end--
		}
		if done, err = h.parseLine(buf, start, end); done || err != nil {
			return done, err
		}
	}
}

func (h *head) parseLine(buf []byte, start, end int) (done bool, err error) {
	switch {
	case !h.inFields:
		return false, h.parseStatus(buf[start:end])
	case start < end:
		return false, h.parseField(buf, start, end)
	case h.status == 101:
		return false, errSwitching
	case h.status < 200:
		line := h.line
		h.reset()
		h.line, h.scanned = line, line
		return false, nil
	}
	return true, nil
}

// parseStatus parses "HTTP/1.x NNN[ reason]".
func (h *head) parseStatus(line []byte) error {
	if len(line) < len("HTTP/1.1 200") || string(line[:7]) != "HTTP/1." || line[8] != ' ' || line[7]|1 != '1' {
		return errStatusLine
	}
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return errStatusLine
		}
		h.status = h.status*10 + int(c-'0')
	}
	if h.status < 100 || h.status > 599 || len(line) > 12 && line[12] != ' ' {
		return errStatusLine
	}
	h.http10, h.inFields = line[7] == '0', true
	return nil
}

func (h *head) parseField(buf []byte, start, end int) error {
	if buf[start] == ' ' || buf[start] == '\t' {
		return errHeaderFold
	}
	if len(h.fields) >= maxHeaderFields {
		return errFieldCount
	}
	colon := bytes.IndexByte(buf[start:end], ':')
	if colon <= 0 || !isToken(buf[start:start+colon]) || !isFieldValue(buf[start+colon+1:end]) {
		return errHeaderLine
	}
	value, valueEnd := start+colon+1, end
	for value < valueEnd && isBlank(buf[value]) {
		value++
	}
	for value < valueEnd && isBlank(buf[valueEnd-1]) {
		valueEnd--
	}
	h.fields = append(h.fields, field{uint32(start), uint32(start + colon), uint32(value), uint32(valueEnd)})
	return h.note(buf[start:start+colon], buf[value:valueEnd])
}

// note stores the fields that determine the framing of the body.
func (h *head) note(name, value []byte) error {
	switch len(name) {
	case len("Connection"):
		if equalFold(name, "connection") {
			h.close = h.close || hasToken(value, "close")
			h.keepAlive = h.keepAlive || hasToken(value, "keep-alive")
		}
	case len("Content-Length"):
		if equalFold(name, "content-length") {
			return h.noteLength(value)
		}
	case len("Transfer-Encoding"):
		if equalFold(name, "transfer-encoding") {
			return h.noteCoding(value)
		}
	}
	return nil
}

func (h *head) noteLength(value []byte) error {
	if h.length == lengthChunked {
		return errBothLengths
	}
	if len(value) == 0 || len(value) > 18 {
		return errLength
	}
	var n int64
	for _, c := range value {
		if c < '0' || c > '9' {
			return errLength
		}
		n = n*10 + int64(c-'0')
	}
	if h.hasLength {
		return errLengths
	}
	h.length, h.hasLength = n, true
	return nil
}

func (h *head) noteCoding(value []byte) error {
	switch {
	case h.hasLength:
		return errBothLengths
	case h.http10 || h.length == lengthChunked || !equalFold(value, "chunked"):
		return errCoding
	}
	h.length = lengthChunked
	return nil
}

// reusable reports whether the connection may carry another exchange after the body has been read
// to its end.
func (h *head) reusable() bool {
	if h.close || h.length == lengthUntilClose {
		return false
	}
	return !h.http10 || h.keepAlive
}

// get returns the value of the first field with this name, or nil.
func (h *head) get(buf []byte, name string) []byte {
	for _, f := range h.fields {
		if int(f.nameEnd-f.name) == len(name) && equalFold(buf[f.name:f.nameEnd], name) {
			return buf[f.value:f.valueEnd:f.valueEnd]
		}
	}
	return nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }

// isToken reports whether b is a valid field name by RFC 9110.
func isToken(b []byte) bool {
	for _, c := range b {
		if !tokenBytes[c] {
			return false
		}
	}
	return len(b) > 0
}

var tokenBytes = func() (t [256]bool) {
	for c := '0'; c <= 'z'; c++ {
		t[c] = c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a'
	}
	for _, c := range "!#$%&'*+-.^_`|~" {
		t[c] = true
	}
	return t
}()

// isFieldValue reports whether b has no control bytes other than tab.
func isFieldValue(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// equalFold compares with lower, which is lower-case ASCII.
func equalFold(b []byte, lower string) bool {
	if len(b) != len(lower) {
		return false
	}
	for i, c := range b {
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// hasToken reports whether the comma-separated list contains lower.
func hasToken(list []byte, lower string) bool {
	for len(list) > 0 {
		item, rest, _ := bytes.Cut(list, comma)
		if equalFold(bytes.TrimSpace(item), lower) {
			return true
		}
		list = rest
	}
	return false
}

var comma = []byte{','}
