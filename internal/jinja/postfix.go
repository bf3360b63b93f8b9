package jinja

// postfix parses members, items, slices and calls after e.
func (p *parser) postfix(e expression) expression {
	for {
		switch {
		case p.op("."):
			e = &attrNode{e, p.expect(tokName, "").text}
		case p.op("["):
			e = p.subscript(e)
		case p.is(tokOp, "("):
			e = p.call(e)
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expression) expression {
	bounds, colons := [3]expression{}, 0
	for !p.op("]") {
		if p.op(":") {
			if colons++; colons > 2 {
				p.unexpected("]")
			}
			continue
		}
		if bounds[colons] != nil {
			p.unexpected("]")
		}
		bounds[colons] = p.expression()
	}
	if colons > 0 {
		return &sliceNode{of, bounds[0], bounds[1], bounds[2]}
	}
	if bounds[0] == nil {
		fail(p.peek().line, "an empty subscript")
	}
	return &itemNode{of, bounds[0]}
}

// call parses the arguments of a call. call refuses a method that no value has.
func (p *parser) call(of expression) expression {
	n := &callNode{of: of, line: p.peek().line}
	switch f := of.(type) {
	case *attrNode:
		if !methods[f.name] {
			fail(n.line, "the method %q is not supported", f.name)
		}
	case *nameNode:
		if f.name == "caller" {
			fail(n.line, "caller() is not supported")
		}
	}
	n.args, n.named = p.arguments()
	return n
}

func (p *parser) arguments() (args []expression, named []namedArg) {
	p.expect(tokOp, "(")
	p.series(")", func() {
		if t := p.peek(); t.kind == tokOp && (t.text == "*" || t.text == "**") {
			fail(t.line, "arguments with %q are not supported", t.text)
		}
		if p.peek().kind == tokName && p.tokens[p.at+1].kind == tokOp && p.tokens[p.at+1].text == "=" {
			name := p.next().text
			p.next()
			named = append(named, namedArg{name, p.expression()})
		} else {
			args = append(args, p.expression())
		}
	})
	return args, named
}

// filters parses filters and tests after e.
func (p *parser) filters(e expression) expression {
	for {
		switch {
		case p.op("|"):
			t := p.expect(tokName, "")
			f := filters[t.text]
			if f == nil {
				fail(t.line, "the filter %q is not supported", t.text)
			}
			n := &filterNode{of: e, name: t.text, apply: f, line: t.line}
			if p.is(tokOp, "(") {
				n.args, n.named = p.arguments()
			}
			checkNames(n)
			e = n
		case p.word("is"):
			e = p.test(e)
		case p.is(tokOp, "("): // a call of a filter's result
			e = p.call(e)
		default:
			return e
		}
	}
}

// checkNames refuses unknown names of filters and tests in the arguments of map, select and similar
// filters.
func checkNames(n *filterNode) {
	at, known := -1, func(string) bool { return true }
	switch n.name {
	case "map":
		at, known = 0, func(s string) bool { return filters[s] != nil }
	case "select", "reject":
		at, known = 0, func(s string) bool { return tests[s] != nil }
	case "selectattr", "rejectattr":
		at, known = 1, func(s string) bool { return tests[s] != nil }
	}
	if at < 0 || at >= len(n.args) {
		return
	}
	c, ok := n.args[at].(*constNode)
	if !ok {
		fail(n.line, "%s with a name that is not written out", n.name)
	}
	if s, ok := c.value.(string); !ok || !known(s) {
		fail(n.line, "%s(%v) is not supported", n.name, c.value)
	}
}

func (p *parser) test(e expression) expression {
	n := &testNode{of: e, not: p.word("not")}
	t := p.peek()
	name := t.text
	if t.kind != tokName {
		p.unexpected("")
	}
	p.next()
	if n.apply = tests[name]; n.apply == nil {
		fail(t.line, "the test %q is not supported", name)
	}
	switch next := p.peek(); {
	case p.is(tokOp, "("):
		var named []namedArg
		if n.args, named = p.arguments(); named != nil {
			fail(t.line, "a test with named arguments is not supported")
		}
	case next.kind == tokString, next.kind == tokInt, next.kind == tokFloat, p.is(tokOp, "["),
		next.kind == tokName && next.text != "else" && next.text != "or" && next.text != "and" && next.text != "is" &&
			next.text != "if" && next.text != "not" && next.text != "in":
		n.args = []expression{p.postfix(p.primary())}
	}
	return n
}
