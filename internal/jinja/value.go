package jinja

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// Value is a value in a template: nil (none), Undefined, bool, int64, float64, string, *List, *Dict
// or a function.
type Value any

// Undefined is the value of an undefined name.
type Undefined struct{}

// List is a list or a tuple.
type List struct{ Items []Value }

// Dict is an object whose members keep their order. The zero value is empty.
type Dict struct {
	keys   []string
	values []Value
	index  map[string]int // used in dicts with more than a few members
	open   bool           // it is a namespace, so templates may set members
}

const indexed = 8 // from this number of members on, there is an index

func (d *Dict) at(key string) int {
	if d.index != nil {
		if i, ok := d.index[key]; ok {
			return i
		}
		return -1
	}
	return slices.Index(d.keys, key)
}

// Get returns a member, and whether it exists.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.at(key); i >= 0 {
		return d.values[i], true
	}
	return nil, false
}

// Set sets a member. A new member becomes the last.
func (d *Dict) Set(key string, v Value) {
	if i := d.at(key); i >= 0 {
		d.values[i] = v
		return
	}
	d.keys, d.values = append(d.keys, key), append(d.values, v)
	if len(d.keys) == indexed {
		d.index = map[string]int{}
		for i, k := range d.keys {
			d.index[k] = i
		}
	} else if d.index != nil {
		d.index[key] = len(d.keys) - 1
	}
}

// Len returns the number of members, Member the i-th member.
func (d *Dict) Len() int                     { return len(d.keys) }
func (d *Dict) Member(i int) (string, Value) { return d.keys[i], d.values[i] }

// function is a value that a template can call.
type function func(r *render, args []Value, named map[string]Value) Value

func truth(v Value) bool {
	switch v := v.(type) {
	case nil, Undefined:
		return false
	case bool, int64, float64:
		n, _ := number(v)
		return n != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return v.open || len(v.keys) > 0
	}
	return true
}

func equal(a, b Value) bool {
	if x, y, ok := numbers(a, b); ok {
		return x == y
	}
	switch a := a.(type) {
	case nil, Undefined, string:
		return a == b
	case *List:
		o, ok := b.(*List)
		return ok && slices.EqualFunc(a.Items, o.Items, equal)
	case *Dict:
		o, ok := b.(*Dict)
		if !ok || len(a.keys) != len(o.keys) {
			return false
		}
		for i, k := range a.keys {
			if v, ok := o.Get(k); !ok || !equal(a.values[i], v) {
				return false
			}
		}
		return true
	}
	return false
}

// number returns v as a number. True and false are 1 and 0, as in Python.
func number(v Value) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	}
	return 0, false
}

func numbers(a, b Value) (x, y float64, ok bool) {
	x, okA := number(a)
	y, okB := number(b)
	return x, y, okA && okB
}

// whole returns v as a whole number.
func whole(v Value) (int64, bool) {
	switch v := v.(type) {
	case int64:
		return v, true
	case bool:
		n, _ := number(v)
		return int64(n), true
	}
	return 0, false
}

// text returns Python's str(v).
func text(v Value) string {
	switch v := v.(type) {
	case Undefined:
		return ""
	case string:
		return v
	}
	var b strings.Builder
	repr(&b, v)
	return b.String()
}

// maxRepr bounds the text of a value, in bytes.
const maxRepr = 1 << 20

// repr writes Python's repr(v).
func repr(b *strings.Builder, v Value) {
	if b.Len() > maxRepr {
		panic(renderError{ErrLimit})
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case Undefined:
		b.WriteString("Undefined")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int64:
		b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		b.WriteString(floatText(v))
	case string:
		reprString(b, v)
	case *List:
		b.WriteByte('[')
		for i, x := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			repr(b, x)
		}
		b.WriteByte(']')
	case *Dict:
		b.WriteByte('{')
		for i, k := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			reprString(b, k)
			b.WriteString(": ")
			repr(b, v.values[i])
		}
		b.WriteByte('}')
	default:
		throw("a function cannot be written out")
	}
}

func reprString(b *strings.Builder, s string) {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, "\"") {
		quote = '"'
	}
	b.WriteByte(quote)
	for _, r := range s {
		switch {
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == rune(quote) || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsPrint(r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(b, `\x%02x`, r)
		case r < 0x10000:
			fmt.Fprintf(b, `\u%04x`, r)
		default:
			fmt.Fprintf(b, `\U%08x`, r)
		}
	}
	b.WriteByte(quote)
}

// floatText returns Python's repr of a float.
func floatText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	at := strings.IndexByte(s, 'e')
	exp, _ := strconv.Atoi(s[at+1:])
	if exp < -4 || exp >= 16 {
		return s
	}
	if s = strconv.FormatFloat(f, 'f', -1, 64); !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
