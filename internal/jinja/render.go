package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Limits bound one rendering.
type Limits struct {
	Bytes int // bytes of the text
	Steps int // evaluated statements and expressions
}

// maxCalls bounds the nesting of macro calls.
const maxCalls = 64

// renderError is thrown for a template that cannot be rendered.
type renderError struct{ err error }

func throw(format string, args ...any) Value { panic(renderError{fmt.Errorf(format, args...)}) }

// ErrLimit is the error of a rendering that exceeds its Limits.
var ErrLimit = errors.New("the rendering is too long")

// render is one rendering.
type render struct {
	out   *strings.Builder
	limit Limits
	used  int // bytes of all written texts, including those of macros
	steps int
	calls int
	now   func() time.Time
}

func (r *render) step() {
	if r.steps++; r.steps > r.limit.Steps {
		panic(renderError{ErrLimit})
	}
}

func (r *render) write(s string) {
	r.grow(len(s))
	r.out.WriteString(s)
}

// grow counts n new bytes.
func (r *render) grow(n int) {
	if r.used += n; r.used > 8*r.limit.Bytes || r.out.Len() > r.limit.Bytes {
		panic(renderError{ErrLimit})
	}
}

// scope resolves names: first in itself, then in the scopes around it.
type scope struct {
	names  []string
	values []Value
	around *scope
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.around {
		for i, n := range s.names {
			if n == name {
				return s.values[i], true
			}
		}
	}
	return nil, false
}

func (s *scope) set(name string, v Value) {
	for i, n := range s.names {
		if n == name {
			s.values[i] = v
			return
		}
	}
	s.names, s.values = append(s.names, name), append(s.values, v)
}

// Render renders the template with the variables. An error means that the template cannot be
// rendered exactly, or that it has called raise_exception.
func (t *Template) Render(variables *Dict, limit Limits) (out string, err error) {
	r := &render{out: &strings.Builder{}, limit: limit, now: time.Now}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case renderError:
			out, err = "", e.err
		default:
			panic(e)
		}
	}()
	root := &scope{names: variables.keys, values: variables.values}
	runAll(t.body, r, &scope{around: root})
	if r.out.Len() > limit.Bytes {
		return "", ErrLimit
	}
	return r.out.String(), nil
}

func runAll(body []statement, r *render, s *scope) flow {
	for _, st := range body {
		r.step()
		if f := st.run(r, s); f != goOn {
			return f
		}
	}
	return goOn
}

func (n *dataNode) run(r *render, _ *scope) flow {
	r.write(n.text)
	return goOn
}

func (n *printNode) run(r *render, s *scope) flow {
	r.write(text(n.value.eval(r, s)))
	return goOn
}

func (n *flowNode) run(*render, *scope) flow      { return n.flow }
func (n *blockNode) run(r *render, s *scope) flow { return runAll(n.body, r, s) }

func (n *ifNode) run(r *render, s *scope) flow {
	for i, test := range n.tests {
		if truth(test.eval(r, s)) {
			return runAll(n.bodies[i], r, s)
		}
	}
	return runAll(n.other, r, s)
}

// capture renders body to a separate text.
func capture(body []statement, r *render, s *scope) string {
	before := r.out
	r.out = &strings.Builder{}
	runAll(body, r, s)
	text := r.out.String()
	r.out = before
	return text
}

func (n *setNode) run(r *render, s *scope) flow {
	var v Value
	if n.value == nil {
		v = capture(n.body, r, &scope{around: s})
	} else {
		v = n.value.eval(r, s)
	}
	if n.member == "" {
		unpack(s, n.targets, v)
		return goOn
	}
	d, _ := s.get(n.targets[0])
	space, ok := d.(*Dict)
	if !ok || !space.open {
		throw("%s is no namespace", n.targets[0])
	}
	space.Set(n.member, v)
	return goOn
}

func unpack(s *scope, names []string, v Value) {
	if len(names) == 1 {
		s.set(names[0], v)
		return
	}
	items := each(v)
	if len(items) != len(names) {
		throw("%d values for %d names", len(items), len(names))
	}
	for i, name := range names {
		s.set(name, items[i])
	}
}

func (n *macroNode) run(_ *render, s *scope) flow {
	s.set(n.name, function(func(r *render, args []Value, named map[string]Value) Value {
		if r.calls++; r.calls > maxCalls {
			throw("macros call each other more than %d deep", maxCalls)
		}
		defer func() { r.calls-- }()
		if len(args) > len(n.params) {
			throw("the macro %s takes %d arguments", n.name, len(n.params))
		}
		inner := &scope{around: s}
		taken := 0
		for i, param := range n.params {
			if v, ok := named[param]; ok {
				taken++
				inner.set(param, v)
			} else if i < len(args) {
				inner.set(param, args[i])
			} else if d := n.defaults[param]; d != nil {
				inner.set(param, d.eval(r, inner))
			} else {
				inner.set(param, Undefined{})
			}
		}
		if taken != len(named) {
			throw("the macro %s has no such argument", n.name)
		}
		return capture(n.body, r, inner)
	}))
	return goOn
}

func (n *forNode) run(r *render, s *scope) flow {
	items := each(n.over.eval(r, s))
	if n.only != nil {
		var left []Value
		for _, item := range items {
			r.step()
			inner := &scope{around: s}
			unpack(inner, n.targets, item)
			if truth(n.only.eval(r, inner)) {
				left = append(left, item)
			}
		}
		items = left
	}
	if len(items) == 0 {
		return runAll(n.other, r, &scope{around: s})
	}
	depth := int64(1)
	if outer, ok := s.get("loop"); ok {
		if l, ok := outer.(*loop); ok {
			depth = l.depth + 1
		}
	}
	l := &loop{items: items, depth: depth}
	inner := &scope{around: s}
	for i, item := range items {
		r.step()
		l.at = i
		inner.names, inner.values = inner.names[:0], inner.values[:0]
		unpack(inner, n.targets, item)
		inner.set("loop", l)
		if runAll(n.body, r, inner) == breakLoop {
			break
		}
	}
	return goOn
}

// loop is the variable loop inside a loop.
type loop struct {
	items []Value
	at    int
	depth int64
}

func (l *loop) member(name string) Value {
	n, i := int64(len(l.items)), int64(l.at)
	switch name {
	case "index":
		return i + 1
	case "index0":
		return i
	case "first":
		return i == 0
	case "last":
		return i == n-1
	case "length":
		return n
	case "revindex":
		return n - i
	case "revindex0":
		return n - i - 1
	case "depth":
		return l.depth
	case "depth0":
		return l.depth - 1
	case "previtem":
		if i > 0 {
			return l.items[i-1]
		}
		return Undefined{}
	case "nextitem":
		if i+1 < n {
			return l.items[i+1]
		}
		return Undefined{}
	}
	return throw("loop.%s is not supported", name)
}
