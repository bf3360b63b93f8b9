package tokens

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPattern bounds a pattern's text. maxClasses bounds a pattern's classes, of 8 KiB each.
const (
	maxPattern = 4 << 10
	maxClasses = 512
)

// compiler reads a pattern's text.
type compiler struct {
	text    string
	at      int
	fold    bool
	classes map[string]*class
}

// badPattern is the panic value for an unsupported construct.
type badPattern struct{ why string }

// compile reads a pattern. compile's error names the unsupported construct.
func compile(text string) (p *pattern, err error) {
	if len(text) > maxPattern {
		return nil, fmt.Errorf("the pattern has more than %d bytes", maxPattern)
	}
	c := &compiler{text: text, classes: map[string]*class{}}
	defer func() {
		if bad, ok := recover().(badPattern); ok {
			p, err = nil, fmt.Errorf("%s at byte %d of the pattern %q", bad.why, c.at, text)
		}
	}()
	p = &pattern{}
	for {
		a := alternative{items: c.items()}
		if !a.arrange() {
			c.bad("an alternative that can be empty")
		}
		p.alternatives = append(p.alternatives, a)
		if c.done() {
			return p, nil
		}
		c.expect("|")
	}
}

func (c *compiler) bad(format string, args ...any) { panic(badPattern{fmt.Sprintf(format, args...)}) }
func (c *compiler) done() bool                     { return c.at == len(c.text) }
func (c *compiler) next(s string) bool             { return strings.HasPrefix(c.text[c.at:], s) }

func (c *compiler) take(s string) bool {
	if !c.next(s) {
		return false
	}
	c.at += len(s)
	return true
}

func (c *compiler) expect(s string) {
	if !c.take(s) {
		c.bad("expected %q", s)
	}
}

// items reads one alternative.
func (c *compiler) items() (items []item) {
	for !c.done() && !c.next("|") && !c.next(")") {
		switch {
		case c.take("(?!"):
			items = append(items, item{kind: notNext, class: c.one()})
			c.expect(")")
		case c.take("(?i:"):
			c.fold = true
			items = append(items, c.group())
			c.fold = false
		case c.take("(?:"):
			items = append(items, c.group())
		default:
			it := item{kind: ofClass, class: c.one(), min: 1, max: 1}
			c.quantify(&it)
			items = append(items, it)
		}
	}
	return items
}

// group reads alternative sequences of single classes, up to the closing parenthesis.
func (c *compiler) group() item {
	it := item{kind: ofGroup, min: 1, max: 1, group: [][]*class{nil}}
	for !c.take(")") {
		if last := len(it.group) - 1; c.take("|") {
			it.group = append(it.group, nil)
		} else if c.done() || c.next("(") {
			c.bad("a group of more than plain words")
		} else {
			it.group[last] = append(it.group[last], c.one())
		}
	}
	for _, word := range it.group {
		if len(word) == 0 {
			c.bad("an empty word in a group")
		}
	}
	if c.take("?") {
		it.min = 0
	}
	c.noQuantifier()
	return it
}

func (c *compiler) quantify(it *item) {
	switch {
	case c.take("?"):
		it.min = 0
	case c.take("*"):
		it.min, it.max = 0, -1
	case c.take("+"):
		it.max = -1
	case c.next("{"):
		end := strings.IndexByte(c.text[c.at:], '}')
		if end < 0 {
			c.bad("a { without its }")
		}
		low, high, ranged := strings.Cut(c.text[c.at+1:c.at+end], ",")
		it.min, it.max = c.number(low), -1
		if !ranged {
			it.max = it.min
		} else if high != "" {
			it.max = c.number(high)
		}
		if it.max == 0 || it.max > 0 && it.max < it.min {
			c.bad("a count that nothing has")
		}
		c.at += end + 1
	default:
		return
	}
	it.possessive = c.take("+")
	c.noQuantifier()
}

func (c *compiler) noQuantifier() {
	for _, q := range []string{"?", "*", "+", "{"} {
		if c.next(q) {
			c.bad("the quantifier %q, which is not supported there", q)
		}
	}
}

func (c *compiler) number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 || n > 1000 {
		c.bad("the count %q", s)
	}
	return n
}

// one reads one class: a character, an escape or a set.
func (c *compiler) one() *class {
	start, fold := c.at, c.fold
	var has func(rune) bool
	if c.take("[") {
		has = c.set()
	} else {
		switch r := c.rune(); r {
		case '\\':
			has = c.escape()
		case '.', '^', '$', '(', '*', '+', '?', '{':
			c.bad("%q", r)
		default:
			has = func(x rune) bool { return x == r }
		}
	}
	if fold {
		has = folded(has)
	}
	key := c.text[start:c.at] + strconv.FormatBool(fold)
	if c.classes[key] == nil {
		if len(c.classes) == maxClasses {
			c.bad("more than %d different classes", maxClasses)
		}
		c.classes[key] = newClass(has)
	}
	return c.classes[key]
}

func (c *compiler) rune() rune {
	if c.done() {
		c.bad("an end too early")
	}
	r, size := utf8.DecodeRuneInString(c.text[c.at:])
	if r == utf8.RuneError && size < 2 {
		c.bad("invalid UTF-8")
	}
	c.at += size
	return r
}

var plainEscapes = map[rune]rune{'r': '\r', 'n': '\n', 't': '\t', 'f': '\f', 'v': '\v'}

// escape reads the part of an escape behind the backslash.
func (c *compiler) escape() func(rune) bool {
	switch r := c.rune(); r {
	case 's':
		return unicode.IsSpace
	case 'S':
		return func(r rune) bool { return !unicode.IsSpace(r) }
	case 'd':
		return unicode.IsDigit
	case 'p', 'P':
		name := c.text[c.at:]
		if end := strings.IndexByte(name, '}'); strings.HasPrefix(name, "{") && end > 0 {
			name = name[1:end]
		} else {
			c.bad("a property without braces")
		}
		table, ok := property(name)
		if !ok {
			c.bad("the property %q", name)
		}
		c.at += len(name) + 2
		return func(x rune) bool { return unicode.Is(table, x) == (r == 'p') }
	default:
		lit, ok := plainEscapes[r]
		if !ok && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			c.bad("the escape \\%c", r)
		} else if !ok {
			lit = r
		}
		return func(x rune) bool { return x == lit }
	}
}

// set reads a bracketed set behind its opening bracket.
func (c *compiler) set() func(rune) bool {
	negated := c.take("^")
	var parts []func(rune) bool
	for first := true; first || !c.next("]"); first = false {
		if c.next("[") || c.next("&&") {
			c.bad("a set within a set")
		}
		low := c.rune()
		if low == '\\' {
			before := c.at
			part := c.escape()
			if low = c.literal(c.text[before:c.at]); low < 0 {
				parts = append(parts, part)
				continue
			}
		}
		high := low
		if c.next("-") && !c.next("-]") {
			c.at++
			if high = c.rune(); high == '\\' {
				before := c.at
				c.escape()
				high = c.literal(c.text[before:c.at])
			}
			if high < low {
				c.bad("a range that ends before it begins")
			}
		}
		parts = append(parts, func(x rune) bool { return low <= x && x <= high })
	}
	c.expect("]")
	return func(x rune) bool {
		for _, has := range parts {
			if has(x) {
				return !negated
			}
		}
		return negated
	}
}

// literal returns the character of an escape, or -1 if the escape stands for several.
func (c *compiler) literal(escape string) rune {
	r, size := utf8.DecodeRuneInString(escape)
	if size != len(escape) || strings.ContainsRune("sSdpP", r) {
		return -1
	}
	if lit, ok := plainEscapes[r]; ok {
		return lit
	}
	return r
}
