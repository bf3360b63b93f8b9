package jinja

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokData tokenKind = iota
	tokPrint
	tokPrintEnd
	tokBlock
	tokBlockEnd
	tokName
	tokInt
	tokFloat
	tokString
	tokOp
	tokEnd
)

type token struct {
	kind tokenKind
	text string
	line int
}

// syntaxError is thrown if the template is invalid or not supported.
type syntaxError struct {
	line int
	why  string
}

func (e syntaxError) Error() string { return fmt.Sprintf("line %d of the template: %s", e.line, e.why) }

func fail(line int, format string, args ...any) {
	panic(syntaxError{line, fmt.Sprintf(format, args...)})
}

// lexer splits a template into text and the contents of its braces.
type lexer struct {
	src string
	at  int
	out []token
	bol bool // the last token read ended a line

	lines, counted int // line ends in src[:counted]
}

func (l *lexer) line() int {
	if l.at > l.counted {
		l.lines += strings.Count(l.src[l.counted:l.at], "\n")
		l.counted = l.at
	}
	return 1 + l.lines
}

func (l *lexer) add(kind tokenKind, text string) {
	l.out = append(l.out, token{kind, text, l.line()})
}

var (
	braces     = regexp.MustCompile(`\{[{%#]`)
	wordText   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*`)
	numberText = regexp.MustCompile(`^[0-9_]+((?:\.[0-9]+)?(?:[eE][-+0-9][0-9]*)?)`)
)

func lex(src string) []token {
	src = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(src)
	l := &lexer{src: strings.TrimSuffix(src, "\n"), bol: true}
	for l.at < len(l.src) {
		l.step()
	}
	l.add(tokEnd, "")
	return l.out
}

// step reads text up to the next opening brace, and what the brace opens.
func (l *lexer) step() {
	rest := l.src[l.at:]
	open := braces.FindStringIndex(rest)
	if open == nil {
		l.data(rest)
		l.at = len(l.src)
		return
	}
	text, kind, sign := rest[:open[0]], rest[open[0]+1], byte(0)
	l.at += open[1]
	if l.at < len(l.src) && (l.src[l.at] == '-' || l.src[l.at] == '+') {
		sign = l.src[l.at]
		l.at++
	}
	switch {
	case sign == '-':
		text = strings.TrimRightFunc(text, unicode.IsSpace)
	case sign == 0 && kind != '{':
		line := strings.LastIndexByte(text, '\n') + 1
		if (line > 0 || l.bol) && strings.TrimSpace(text[line:]) == "" {
			text = text[:line]
		}
	}
	l.data(text)
	switch kind {
	case '#':
		l.comment()
	case '{':
		l.inside(tokPrint, tokPrintEnd, "}}")
	default:
		l.inside(tokBlock, tokBlockEnd, "%}")
	}
}

func (l *lexer) data(text string) {
	if text != "" {
		l.add(tokData, text)
	}
}

func (l *lexer) comment() {
	end := strings.Index(l.src[l.at:], "#}")
	if end < 0 {
		fail(l.line(), "a comment without its #}")
	}
	sign := byte(0)
	if end > 0 {
		sign = l.src[l.at+end-1]
	}
	l.at += end + 2
	l.closed(sign, true)
}

// closed skips the whitespace that belongs to the closing brace.
func (l *lexer) closed(sign byte, block bool) {
	from := l.at
	switch {
	case sign == '-':
		l.at = len(l.src) - len(strings.TrimLeftFunc(l.src[l.at:], unicode.IsSpace))
	case block && sign != '+' && strings.HasPrefix(l.src[l.at:], "\n"):
		l.at++
	}
	l.bol = l.at > from && l.src[l.at-1] == '\n'
}

var operators = []string{"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[",
	"]", "{", "}", ",", ".", ":", "|", ";"}

// inside reads tokens up to the closing brace.
func (l *lexer) inside(open, end tokenKind, brace string) {
	l.add(open, "")
	depth := 0
	for {
		for l.at < len(l.src) && unicode.IsSpace(rune(l.src[l.at])) {
			l.at++
		}
		rest := l.src[l.at:]
		if rest == "" {
			fail(l.line(), "%q is missing", brace)
		}
		if depth == 0 {
			for _, sign := range []string{"", "-", "+"} {
				if strings.HasPrefix(rest, sign+brace) && (sign != "+" || end == tokBlockEnd) {
					l.at += len(sign) + 2
					l.add(end, "")
					l.closed((sign + "\x00")[0], end == tokBlockEnd)
					return
				}
			}
		}
		depth += l.one(rest)
	}
}

// one reads one token and returns its change of the depth of brackets.
func (l *lexer) one(rest string) int {
	switch c := rest[0]; {
	case c == '"' || c == '\'':
		l.text(rest)
		return 0
	case c >= '0' && c <= '9':
		l.number(rest)
		return 0
	}
	if name := wordText.FindString(rest); name != "" {
		l.add(tokName, name)
		l.at += len(name)
		return 0
	}
	for _, op := range operators {
		if strings.HasPrefix(rest, op) {
			l.add(tokOp, op)
			l.at += len(op)
			return strings.Count("([{", op) - strings.Count(")]}", op)
		}
	}
	fail(l.line(), "%q is not understood", rest[:1])
	return 0
}

func (l *lexer) number(rest string) {
	parts := numberText.FindStringSubmatch(rest)
	kind := tokInt
	if parts[1] != "" {
		kind = tokFloat
	}
	l.add(kind, strings.ReplaceAll(parts[0], "_", ""))
	l.at += len(parts[0])
}

// text reads a string with Python's escapes.
func (l *lexer) text(rest string) {
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; c {
		case rest[0]:
			l.add(tokString, b.String())
			l.at += i + 1
			return
		case '\\':
			if i+1 < len(rest) {
				i += l.escape(&b, rest[i+1:])
			}
		default:
			b.WriteByte(c)
		}
	}
	fail(l.line(), "a string without its end")
}

var escapes = map[byte]string{'n': "\n", 't': "\t", 'r': "\r", '\\': "\\", '\'': "'", '"': "\"", '\n': "", 'a': "\a",
	'b': "\b", 'f': "\f", 'v': "\v"}

// escape writes the character of an escape, and returns the length of the escape. text begins after
// the backslash.
func (l *lexer) escape(b *strings.Builder, text string) int {
	if s, ok := escapes[text[0]]; ok {
		b.WriteString(s)
		return 1
	}
	digits := map[byte]int{'x': 2, 'u': 4, 'U': 8}[text[0]]
	if digits == 0 {
		if text[0] >= '0' && text[0] <= '7' || text[0] == 'N' {
			fail(l.line(), "the escape \\%c is not supported", text[0])
		}
		b.WriteByte('\\')
		return 0
	}
	if len(text) <= digits {
		fail(l.line(), "an escape that is too short")
	}
	code, err := strconv.ParseUint(text[1:1+digits], 16, 32)
	if err != nil || !utf8.ValidRune(rune(code)) {
		fail(l.line(), "the escape \\%s", text[:1+digits])
	}
	b.WriteRune(rune(code))
	return 1 + digits
}
