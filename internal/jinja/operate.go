package jinja

import (
	"cmp"
	"math"
	"slices"
	"strings"
)

func (n *unaryNode) eval(r *render, s *scope) Value {
	v := n.of.eval(r, s)
	if n.op == "not" {
		return !truth(v)
	}
	sign := int64(1)
	if n.op == "-" {
		sign = -1
	}
	if i, ok := whole(v); ok {
		return sign * i
	}
	if f, ok := v.(float64); ok {
		return float64(sign) * f
	}
	return throw("%s of a %s", n.op, typeName(v))
}

func (n *compareNode) eval(r *render, s *scope) Value {
	r.step()
	left := n.first.eval(r, s)
	for i, op := range n.ops {
		right := n.rest[i].eval(r, s)
		if !compare(op, left, right) {
			return false
		}
		left = right
	}
	return true
}

func compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return equal(a, b)
	case "!=":
		return !equal(a, b)
	case "in":
		return contains(b, a)
	case "not in":
		return !contains(b, a)
	}
	if x, y, ok := numbers(a, b); ok {
		return ordered(op, x, y)
	}
	x, okA := a.(string)
	y, okB := b.(string)
	if !okA || !okB {
		throw("%s %s %s", typeName(a), op, typeName(b))
	}
	return ordered(op, x, y)
}

func ordered[T cmp.Ordered](op string, x, y T) bool {
	return op == "<" && x < y || op == ">" && x > y || op == "<=" && x <= y || op == ">=" && x >= y
}

func contains(in, v Value) bool {
	switch in := in.(type) {
	case Undefined:
		return false
	case string:
		s, ok := v.(string)
		if !ok {
			throw("%s in a string", typeName(v))
		}
		return strings.Contains(in, s)
	case *List:
		return slices.ContainsFunc(in.Items, func(x Value) bool { return equal(x, v) })
	case *Dict:
		s, ok := v.(string)
		_, has := in.Get(s)
		return ok && has
	}
	throw("in a %s", typeName(in))
	return false
}

func (n *binaryNode) eval(r *render, s *scope) Value {
	r.step()
	a := n.left.eval(r, s)
	switch n.op {
	case "and":
		if !truth(a) {
			return a
		}
		return n.right.eval(r, s)
	case "or":
		if truth(a) {
			return a
		}
		return n.right.eval(r, s)
	}
	b := n.right.eval(r, s)
	if n.op == "~" {
		joined := text(a) + text(b)
		r.grow(len(joined))
		return joined
	}
	if n.op == "+" {
		if v, ok := r.add(a, b); ok {
			return v
		}
	}
	return arithmetic(n.op, a, b)
}

// add concatenates strings or lists.
func (r *render) add(a, b Value) (Value, bool) {
	switch a := a.(type) {
	case string:
		if b, ok := b.(string); ok {
			r.grow(len(a) + len(b))
			return a + b, true
		}
	case *List:
		if b, ok := b.(*List); ok {
			r.grow(8 * (len(a.Items) + len(b.Items)))
			return &List{append(slices.Clip(a.Items), b.Items...)}, true
		}
	}
	return nil, false
}

func arithmetic(op string, a, b Value) Value {
	x, y, ok := numbers(a, b)
	i, okA := whole(a)
	j, okB := whole(b)
	integer := okA && okB
	if !ok || y == 0 && (op == "/" || op == "//" || op == "%") {
		throw("%s %s %s", typeName(a), op, typeName(b))
	}
	const large = 1 << 31 // beyond it whole numbers may not be exact
	if integer && (i > large || i < -large || j > large || j < -large) {
		throw("a number that is too large for %s", op)
	}
	switch op {
	case "+":
		if integer {
			return i + j
		}
		return x + y
	case "-":
		if integer {
			return i - j
		}
		return x - y
	case "*":
		if integer {
			return i * j
		}
		return x * y
	case "/":
		return x / y
	case "//":
		if integer {
			return int64(math.Floor(x / y))
		}
		return math.Floor(x / y)
	}
	if integer {
		return ((i % j) + j) % j
	}
	return x - y*math.Floor(x/y)
}
