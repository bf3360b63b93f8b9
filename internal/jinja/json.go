package jinja

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// dumper writes JSON in the format of Python's json.dumps.
type dumper struct {
	b           strings.Builder
	r           *render
	indent      string // indent of one level; "" with pretty false: one line
	pretty      bool
	item, colon string
	ascii, sort bool
}

// toJSON is transformers' filter tojson: json.dumps with ensure_ascii off.
func toJSON(r *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 1, "indent", "ensure_ascii", "separators", "sort_keys")
	// transformers' order of arguments is ensure_ascii, indent, separators, sort_keys. In practice
	// only names are used.
	if len(args) > 0 {
		throw("tojson with an argument that has no name")
	}
	d := &dumper{r: r, item: ", ", colon: ": ", ascii: truth(named["ensure_ascii"]), sort: truth(named["sort_keys"])}
	switch indent := named["indent"].(type) {
	case nil:
	case int64:
		d.pretty, d.indent, d.item = true, strings.Repeat(" ", int(min(max(indent, 0), 32))), ","
	case string:
		d.pretty, d.indent, d.item = true, indent, ","
	default:
		throw("tojson with an indent that is no number")
	}
	if s := named["separators"]; s != nil {
		both := each(s)
		if len(both) != 2 {
			throw("tojson with %d separators", len(both))
		}
		d.item, d.colon = text(both[0]), text(both[1])
	}
	d.value(v, 0)
	r.grow(d.b.Len())
	return d.b.String()
}

const maxDumped = 256 // levels of nesting

func (d *dumper) value(v Value, level int) {
	if level > maxDumped {
		throw("tojson of more than %d levels", maxDumped)
	}
	if d.b.Len() > d.r.limit.Bytes {
		panic(renderError{ErrLimit})
	}
	d.r.step()
	switch v := v.(type) {
	case nil:
		d.b.WriteString("null")
	case bool:
		d.b.WriteString(strconv.FormatBool(v))
	case int64:
		d.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		d.b.WriteString(floatText(v))
	case string:
		d.text(v)
	case *List:
		d.open('[', ']', len(v.Items), level, func(i int) { d.value(v.Items[i], level+1) })
	case *Dict:
		if d.sort {
			v = sorted(v)
		}
		d.open('{', '}', len(v.keys), level, func(i int) {
			d.text(v.keys[i])
			d.b.WriteString(d.colon)
			d.value(v.values[i], level+1)
		})
	default:
		throw("tojson of a %s", typeName(v))
	}
}

func sorted(d *Dict) *Dict {
	out := &Dict{}
	for _, key := range slices.Sorted(slices.Values(d.keys)) {
		out.Set(key, d.values[d.at(key)])
	}
	return out
}

func (d *dumper) open(first, last byte, n, level int, one func(int)) {
	d.b.WriteByte(first)
	for i := range n {
		if i > 0 {
			d.b.WriteString(d.item)
		}
		d.line(level + 1)
		one(i)
	}
	if n > 0 {
		d.line(level)
	}
	d.b.WriteByte(last)
}

func (d *dumper) line(level int) {
	if d.pretty {
		d.b.WriteByte('\n')
		d.b.WriteString(strings.Repeat(d.indent, level))
	}
}

// controls are the escapes of control characters.
var controls = func() (all [' ']string) {
	for r := range all {
		all[r] = fmt.Sprintf(`\u%04x`, r)
	}
	all['\n'], all['\r'], all['\t'], all['\f'], all['\b'] = `\n`, `\r`, `\t`, `\f`, `\b`
	return all
}()

func (d *dumper) text(s string) {
	d.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			d.b.WriteByte('\\')
			d.b.WriteByte(byte(r))
		case r < ' ':
			d.b.WriteString(controls[r])
		case r < utf8.RuneSelf || !d.ascii:
			d.b.WriteRune(r)
		default:
			for _, unit := range utf16.AppendRune(nil, r) {
				fmt.Fprintf(&d.b, `\u%04x`, unit)
			}
		}
	}
	d.b.WriteByte('"')
}
