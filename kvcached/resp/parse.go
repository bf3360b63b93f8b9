package resp

import (
	"bytes"
	"fmt"
	"math"
)

// protocolError says why the client's bytes are not RESP. The client gets the text before the
// connection is closed.
type protocolError string

func (e protocolError) Error() string { return "Protocol error: " + string(e) }

const (
	maxLine           = 64        // bytes of a line with a count or a length
	unauthedArgs      = 10        // arguments of a command before authentication
	unauthedBulk      = 16384     // bytes of an argument before authentication
	redisBulk         = 512 << 20 // bytes of the longest value in redis
	errMultibulk      = protocolError("invalid multibulk length")
	errBulk           = protocolError("invalid bulk length")
	errLongBulk       = protocolError("invalid bulk length: a value has at most 64 MiB here")
	errBulkEnd        = protocolError("expected CRLF after a bulk string")
	errUnbalanced     = protocolError("unbalanced quotes in request")
	errInline         = protocolError("too big inline request")
	errUnauthedArgs   = protocolError("unauthenticated multibulk length")
	errUnauthedLength = protocolError("unauthenticated bulk length")
)

// bounds are the limits of a parser.
type bounds struct {
	args, bulk int
	authed     bool
}

// parseInteger reads a decimal number without plus sign and leading zeros, like redis' string2ll.
func parseInteger(b []byte) (int64, bool) {
	digits, negative := b, false
	if len(b) > 1 && b[0] == '-' {
		digits, negative = b[1:], true
	}
	if len(digits) == 0 || len(digits) > 19 || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}
	var v uint64
	for _, d := range digits {
		if d < '0' || d > '9' {
			return 0, false
		}
		v = v*10 + uint64(d-'0')
	}
	switch {
	case negative && v <= math.MaxInt64+1:
		return -int64(v), true
	case !negative && v <= math.MaxInt64:
		return int64(v), true
	}
	return 0, false
}

// countLine reads a line such as "*3\r\n" or "$5\r\n" at the head of b. length is 0 if the line is
// incomplete.
func countLine(b []byte) (v int64, length int, ok bool) {
	end := bytes.IndexByte(b[:min(len(b), maxLine)], '\n')
	if end < 0 {
		return 0, 0, len(b) < maxLine
	}
	if b[end-1] != '\r' {
		return 0, 0, false
	}
	v, ok = parseInteger(b[1 : end-1])
	return v, end + 1, ok
}

// multibulk reads the number of arguments. length is 0 if the line is incomplete.
func (l bounds) multibulk(b []byte) (count, length int, err error) {
	v, length, ok := countLine(b)
	switch {
	case !ok && length == 0 && len(b) >= maxLine && bytes.IndexByte(b[:maxLine], '\n') < 0:
		return 0, 0, protocolError("too big mbulk count string")
	case !ok, v > int64(l.args):
		return 0, 0, errMultibulk
	case v > unauthedArgs && !l.authed:
		return 0, 0, errUnauthedArgs
	}
	return int(max(v, 0)), length, nil
}

// bulkLine reads n, the length of an argument. length is 0 if the line is incomplete.
func (l bounds) bulkLine(b []byte) (n, length int, err error) {
	if len(b) == 0 {
		return 0, 0, nil
	}
	if b[0] != '$' {
		return 0, 0, protocolError(fmt.Sprintf("expected '$', got '%c'", printable(b[0])))
	}
	v, length, ok := countLine(b)
	switch {
	case !ok && length == 0 && len(b) >= maxLine && bytes.IndexByte(b[:maxLine], '\n') < 0:
		return 0, 0, protocolError("too big bulk count string")
	case !ok, length > 0 && v < 0, v > redisBulk:
		return 0, 0, errBulk
	case v > int64(l.bulk):
		return 0, 0, errLongBulk
	case v > unauthedBulk && !l.authed:
		return 0, 0, errUnauthedLength
	}
	return int(v), length, nil
}

// printable returns b, or a question mark if b is not printable ASCII.
func printable(b byte) byte {
	if b < ' ' || b > '~' {
		return '?'
	}
	return b
}

// command reads a complete command from b and appends its arguments to args. They point into b.
// consumed is 0 if the command is incomplete. A command may have no arguments.
func (l bounds) command(b []byte, args [][]byte) (_ [][]byte, consumed int, err error) {
	if len(b) == 0 {
		return args, 0, nil
	}
	if b[0] != '*' {
		return inline(b, args)
	}
	count, at, err := l.multibulk(b)
	if err != nil || at == 0 {
		return args, 0, err
	}
	for range count {
		n, length, err := l.bulkLine(b[at:])
		if err != nil || length == 0 {
			return args, 0, err
		}
		at += length
		if len(b)-at < n+len(crlf) {
			return args, 0, nil
		}
		if b[at+n] != '\r' || b[at+n+1] != '\n' {
			return args, 0, errBulkEnd
		}
		args = append(args, b[at:at+n:at+n])
		at += n + len(crlf)
	}
	return args, at, nil
}

// inline reads a command that a person typed: a line of words, which may be quoted.
func inline(b []byte, args [][]byte) (_ [][]byte, consumed int, err error) {
	end := bytes.IndexByte(b, '\n')
	if end < 0 {
		if len(b) >= bufferSize {
			return args, 0, errInline
		}
		return args, 0, nil
	}
	args, ok := splitWords(bytes.TrimSuffix(b[:end], []byte("\r")), args)
	if !ok {
		return args, 0, errUnbalanced
	}
	return args, end + 1, nil
}

func isSpace(b byte) bool { return b == ' ' || b >= '\t' && b <= '\r' || b == 0 }

// splitWords splits a line like redis' sdssplitargs. It copies words with quotes.
func splitWords(line []byte, args [][]byte) (_ [][]byte, ok bool) {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return args, true
		}
		begin := i
		for i < len(line) && !isSpace(line[i]) && line[i] != '"' && line[i] != '\'' {
			i++
		}
		if i == len(line) || isSpace(line[i]) {
			args = append(args, line[begin:i:i])
			continue
		}
		word, n := quotedWord(line[begin:])
		if n == 0 {
			return args, false
		}
		args = append(args, word)
		i = begin + n
	}
}

// quotedWord reads one word with quotes. length is its length in line; 0: a quote is not closed.
func quotedWord(line []byte) (word []byte, length int) {
	word = make([]byte, 0, len(line))
	var quote byte
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == 0 && isSpace(c):
			return word, i
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0:
			word = append(word, c)
		case c == quote:
			if i+1 < len(line) && !isSpace(line[i+1]) {
				return nil, 0 // a closing quote ends the word
			}
			return word, i + 1
		case quote == '\'' && c == '\\' && i+1 < len(line) && line[i+1] == '\'':
			word = append(word, '\'')
			i++
		case quote == '"' && c == '\\' && i+1 < len(line):
			var n int
			word, n = appendEscaped(word, line[i+1:])
			i += n
		default:
			word = append(word, c)
		}
	}
	if quote != 0 {
		return nil, 0
	}
	return word, len(line)
}

// appendEscaped appends the byte that a backslash before b means. It returns the number of bytes of
// b that it used. b is not empty.
func appendEscaped(word, b []byte) (_ []byte, n int) {
	if len(b) >= 3 && b[0] == 'x' {
		if high, low := hexDigit(b[1]), hexDigit(b[2]); high >= 0 && low >= 0 {
			return append(word, byte(high<<4|low)), 3
		}
	}
	if i := bytes.IndexByte([]byte("nrtba"), b[0]); i >= 0 {
		return append(word, "\n\r\t\b\a"[i]), 1
	}
	return append(word, b[0]), 1
}

func hexDigit(b byte) int {
	switch {
	case b >= '0' && b <= '9':
		return int(b - '0')
	case b|0x20 >= 'a' && b|0x20 <= 'f':
		return int(b|0x20-'a') + 10
	}
	return -1
}
