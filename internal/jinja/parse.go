package jinja

import (
	"fmt"
	"slices"
)

// Template is a parsed template. A Template is immutable and safe for concurrent use.
type Template struct{ body []statement }

// Bounds of a template's text, and of its nesting.
const (
	maxSource = 1 << 20
	maxNested = 64
)

type parser struct {
	tokens []token
	at     int
	depth  int
}

// Parse parses a template. Parse's error names the line and the unsupported feature.
func Parse(source string) (t *Template, err error) {
	if len(source) > maxSource {
		return nil, fmt.Errorf("the template has more than %d bytes", maxSource)
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case syntaxError:
			t, err = nil, e
		default:
			panic(e)
		}
	}()
	p := &parser{tokens: lex(source)}
	body, _ := p.statements()
	return &Template{body}, nil
}

func (p *parser) peek() token { return p.tokens[p.at] }

func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != tokEnd {
		p.at++
	}
	return t
}

func (p *parser) is(kind tokenKind, text string) bool {
	t := p.peek()
	return t.kind == kind && t.text == text
}

func (p *parser) take(kind tokenKind, text string) bool {
	if p.is(kind, text) {
		p.at++
		return true
	}
	return false
}

func (p *parser) op(text string) bool   { return p.take(tokOp, text) }
func (p *parser) word(text string) bool { return p.take(tokName, text) }

func (p *parser) expect(kind tokenKind, text string) token {
	t := p.peek()
	if t.kind != kind || text != "" && t.text != text {
		p.unexpected(text)
	}
	return p.next()
}

func (p *parser) unexpected(want string) {
	t := p.peek()
	if t.text == "" {
		fail(t.line, "the tag or expression ends too early")
	}
	if want == "" {
		fail(t.line, "%q is not expected there", t.text)
	}
	fail(t.line, "%q is not expected there, but %q", t.text, want)
}

// nest counts a level of nesting and enforces the bound.
func (p *parser) nest() func() {
	if p.depth++; p.depth > maxNested {
		fail(p.peek().line, "it nests deeper than %d", maxNested)
	}
	return func() { p.depth-- }
}

// statements parses up to one of the tags in ends, and stops after the tag's name. If ends is
// empty, statements parses to the end of the template.
func (p *parser) statements(ends ...string) (body []statement, end string) {
	defer p.nest()()
	for {
		switch t := p.next(); t.kind {
		case tokEnd:
			if len(ends) > 0 {
				fail(t.line, "{%% %s %%} is missing", ends[len(ends)-1])
			}
			return body, ""
		case tokData:
			body = append(body, &dataNode{t.text})
		case tokPrint:
			body = append(body, &printNode{p.tuple()})
			p.expect(tokPrintEnd, "")
		case tokBlock:
			name := p.expect(tokName, "")
			if slices.Contains(ends, name.text) {
				return body, name.text
			}
			body = append(body, p.tag(name))
		default:
			p.at--
			p.unexpected("")
		}
	}
}

func (p *parser) close() { p.expect(tokBlockEnd, "") }

// block parses the body of a tag up to its end tag.
func (p *parser) block(end string) []statement {
	p.close()
	body, _ := p.statements(end)
	p.close()
	return body
}

func (p *parser) tag(name token) statement {
	switch name.text {
	case "if":
		return p.ifTag()
	case "for":
		return p.forTag()
	case "set":
		return p.setTag()
	case "macro":
		return p.macroTag()
	case "generation":
		return &blockNode{p.block("endgeneration")}
	case "break":
		p.close()
		return &flowNode{breakLoop}
	case "continue":
		p.close()
		return &flowNode{continueLoop}
	}
	fail(name.line, "the tag %q is not supported", name.text)
	return nil
}

func (p *parser) ifTag() statement {
	n := &ifNode{}
	for {
		n.tests = append(n.tests, p.tuple())
		p.close()
		body, end := p.statements("elif", "else", "endif")
		n.bodies = append(n.bodies, body)
		switch end {
		case "elif":
			continue
		case "else":
			n.other = p.block("endif")
		default:
			p.close()
		}
		return n
	}
}

func (p *parser) forTag() statement {
	n := &forNode{targets: p.targets()}
	p.expect(tokName, "in")
	n.over = p.unconditional()
	if p.word("if") {
		n.only = p.expression()
	}
	if t := p.peek(); t.kind == tokName {
		fail(t.line, "%q in a loop is not supported", t.text)
	}
	p.close()
	var end string
	if n.body, end = p.statements("else", "endfor"); end == "else" {
		n.other = p.block("endfor")
	} else {
		p.close()
	}
	return n
}

// targets parses names separated by commas, with or without parentheses.
func (p *parser) targets() (names []string) {
	paren := p.op("(")
	for {
		names = append(names, p.expect(tokName, "").text)
		if !p.op(",") {
			break
		}
	}
	if paren {
		p.expect(tokOp, ")")
	}
	return names
}

func (p *parser) setTag() statement {
	n := &setNode{targets: p.targets()}
	if len(n.targets) == 1 && p.op(".") {
		n.member = p.expect(tokName, "").text
	}
	if p.op("=") {
		n.value = p.tuple()
		p.close()
		return n
	}
	if len(n.targets) != 1 || n.member != "" {
		p.unexpected("=")
	}
	n.body = p.block("endset")
	return n
}

func (p *parser) macroTag() statement {
	n := &macroNode{name: p.expect(tokName, "").text, defaults: map[string]expression{}}
	p.expect(tokOp, "(")
	p.series(")", func() {
		param := p.expect(tokName, "").text
		n.params = append(n.params, param)
		if p.op("=") {
			n.defaults[param] = p.expression()
		}
	})
	n.body = p.block("endmacro")
	return n
}

// series parses what one parses, any number of times with commas between, and the closing bracket.
func (p *parser) series(end string, one func()) {
	for !p.op(end) {
		one()
		if !p.op(",") && !p.is(tokOp, end) {
			p.unexpected(end)
		}
	}
}

// tuple parses one expression, or several separated by commas.
func (p *parser) tuple() expression {
	first := p.expression()
	if !p.is(tokOp, ",") {
		return first
	}
	n := &listNode{items: []expression{first}, tuple: true}
	for p.op(",") {
		if t := p.peek(); t.kind == tokPrintEnd || t.kind == tokBlockEnd || p.is(tokOp, ")") {
			break
		}
		n.items = append(n.items, p.expression())
	}
	return n
}

func (p *parser) expression() expression {
	defer p.nest()()
	e := p.unconditional()
	for p.word("if") {
		n := &chooseNode{yes: e, test: p.unconditional(), no: &constNode{Undefined{}}}
		if p.word("else") {
			n.no = p.expression()
		}
		e = n
	}
	return e
}

func (p *parser) unconditional() expression {
	return p.leftToRight(tokName, []string{"or"}, p.and)
}

func (p *parser) and() expression {
	return p.leftToRight(tokName, []string{"and"}, p.not)
}

func (p *parser) not() expression {
	if p.word("not") {
		defer p.nest()()
		return &unaryNode{"not", p.not()}
	}
	return p.compare()
}
