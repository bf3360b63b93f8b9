package jinja

import (
	"slices"
	"strconv"
)

var comparisons = []string{"==", "!=", "<", ">", "<=", ">="}

func (p *parser) compare() expression {
	n := &compareNode{first: p.sum()}
	for {
		t, op := p.peek(), ""
		switch {
		case t.kind == tokOp && slices.Contains(comparisons, t.text):
			op = p.next().text
		case p.word("in"):
			op = "in"
		case p.is(tokName, "not") && p.tokens[p.at+1].kind == tokName && p.tokens[p.at+1].text == "in":
			p.at += 2
			op = "not in"
		default:
			if len(n.ops) == 0 {
				return n.first
			}
			return n
		}
		n.ops, n.rest = append(n.ops, op), append(n.rest, p.sum())
	}
}

// leftToRight parses operators of one precedence: words, or signs.
func (p *parser) leftToRight(kind tokenKind, ops []string, inner func() expression) expression {
	e := inner()
	for t := p.peek(); t.kind == kind && slices.Contains(ops, t.text); t = p.peek() {
		p.next()
		e = &binaryNode{t.text, e, inner()}
	}
	return e
}

func (p *parser) sum() expression { return p.leftToRight(tokOp, []string{"+", "-"}, p.concat) }
func (p *parser) concat() expression {
	return p.leftToRight(tokOp, []string{"~"}, p.product)
}
func (p *parser) product() expression {
	return p.leftToRight(tokOp, []string{"*", "/", "//", "%"}, p.unary)
}

func (p *parser) unary() expression {
	defer p.nest()()
	return p.filters(p.signed())
}

// signed parses an operand with its sign, but without the filters and tests after it.
func (p *parser) signed() expression {
	for _, op := range []string{"-", "+"} {
		if p.op(op) {
			defer p.nest()()
			return &unaryNode{op, p.signed()}
		}
	}
	e := p.postfix(p.primary())
	if p.is(tokOp, "**") {
		fail(p.peek().line, "the operator ** is not supported")
	}
	return e
}

func (p *parser) primary() expression {
	switch t := p.next(); t.kind {
	case tokInt:
		n, err := strconv.ParseInt(t.text, 10, 64)
		if err != nil {
			fail(t.line, "the number %s is too large", t.text)
		}
		return &constNode{n}
	case tokFloat:
		f, _ := strconv.ParseFloat(t.text, 64)
		return &constNode{f}
	case tokString:
		s := t.text
		for p.peek().kind == tokString {
			s += p.next().text
		}
		return &constNode{s}
	case tokName:
		switch t.text {
		case "true", "True":
			return &constNode{true}
		case "false", "False":
			return &constNode{false}
		case "none", "None":
			return &constNode{nil}
		}
		return &nameNode{t.text}
	case tokOp:
		switch t.text {
		case "(":
			if p.op(")") {
				return &listNode{tuple: true}
			}
			e := p.tuple()
			p.expect(tokOp, ")")
			return e
		case "[":
			return p.list()
		case "{":
			return p.dict()
		}
	}
	p.at--
	p.unexpected("")
	return nil
}

func (p *parser) list() expression {
	n := &listNode{}
	p.series("]", func() { n.items = append(n.items, p.expression()) })
	return n
}

func (p *parser) dict() expression {
	n := &dictNode{}
	p.series("}", func() {
		n.keys = append(n.keys, p.expression())
		p.expect(tokOp, ":")
		n.values = append(n.values, p.expression())
	})
	return n
}
