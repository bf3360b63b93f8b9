package jinja

import (
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// methods are the methods that templates may call. dictMethods take precedence over members of the
// same name.
var (
	methods = map[string]bool{
		"items": true, "keys": true, "values": true, "get": true, "strip": true, "lstrip": true, "rstrip": true,
		"split": true, "startswith": true, "endswith": true,
		"replace": true, "upper": true, "lower": true, "title": true, "capitalize": true, "find": true, "count": true,
		"index": true, "removeprefix": true, "removesuffix": true,
		"isdigit": true, "splitlines": true, "join": true,
	}
	dictMethods = map[string]bool{
		"items": true, "keys": true, "values": true, "get": true, "pop": true, "update": true, "copy": true,
		"clear": true, "setdefault": true, "popitem": true, "fromkeys": true,
	}
)

// method returns v's method of this name.
func method(v Value, name string) function {
	return func(r *render, args []Value, named map[string]Value) Value {
		only(nil, named, 0)
		switch v := v.(type) {
		case *Dict:
			return dictMethod(v, name, args)
		case *List:
			return listMethod(v, name, args)
		case string:
			out := stringMethod(v, name, args)
			if s, ok := out.(string); ok {
				r.grow(len(s))
			}
			return out
		}
		return throw("the method %s is not supported", name)
	}
}

func dictMethod(d *Dict, name string, args []Value) Value {
	switch {
	case name == "get" && (len(args) == 1 || len(args) == 2):
		if key, ok := args[0].(string); ok {
			if v, ok := d.Get(key); ok {
				return v
			}
		}
		if len(args) == 2 {
			return args[1]
		}
		return nil
	case name == "items" && len(args) == 0:
		return pairs(d)
	case name == "keys" && len(args) == 0:
		return &List{each(d)}
	case name == "values" && len(args) == 0:
		return &List{slices.Clone(d.values)}
	}
	return throw("the method %s of a mapping is not supported", name)
}

func listMethod(l *List, name string, args []Value) Value {
	if len(args) != 1 {
		throw("the method %s with %d arguments", name, len(args))
	}
	n, first := int64(0), int64(-1)
	for i, x := range l.Items {
		if equal(x, args[0]) {
			if n++; first < 0 {
				first = int64(i)
			}
		}
	}
	if name == "count" {
		return n
	}
	if first < 0 {
		throw("a value that is not in the list")
	}
	return first
}

// texts returns the arguments, which must be strings.
func texts(name string, args []Value, n int) []string {
	if len(args) != n {
		throw("the method %s with %d arguments", name, len(args))
	}
	all := make([]string, n)
	for i, a := range args {
		s, ok := a.(string)
		if !ok {
			throw("the method %s with a %s", name, typeName(a))
		}
		all[i] = s
	}
	return all
}

func stringMethod(s, name string, args []Value) Value {
	switch name {
	case "strip", "lstrip", "rstrip":
		trim := map[string]func(string, func(rune) bool) string{"strip": strings.TrimFunc,
			"lstrip": strings.TrimLeftFunc, "rstrip": strings.TrimRightFunc}[name]
		if len(args) == 0 {
			return strip(s, nil, trim)
		}
		return strip(s, texts(name, args, 1)[0], trim)
	case "split":
		return split(s, args)
	case "startswith":
		return affix(s, args, strings.HasPrefix)
	case "endswith":
		return affix(s, args, strings.HasSuffix)
	case "replace":
		a := texts(name, args, 2)
		return strings.ReplaceAll(s, a[0], a[1])
	case "upper":
		return strings.ToUpper(s)
	case "lower":
		return strings.ToLower(s)
	case "capitalize":
		return capitalize(s)
	case "title":
		return titled(s, func(b byte) bool { return b < 'a' || b > 'z' })
	case "removeprefix":
		return strings.TrimPrefix(s, texts(name, args, 1)[0])
	case "removesuffix":
		return strings.TrimSuffix(s, texts(name, args, 1)[0])
	case "find":
		i := strings.Index(s, texts(name, args, 1)[0])
		if i < 0 {
			return int64(-1)
		}
		return int64(utf8.RuneCountInString(s[:i]))
	case "count":
		return int64(strings.Count(s, texts(name, args, 1)[0]))
	case "isdigit":
		return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsDigit(r) })
	case "join":
		if len(args) == 1 {
			var parts []string
			for _, x := range each(args[0]) {
				parts = append(parts, texts(name, []Value{x}, 1)[0])
			}
			return strings.Join(parts, s)
		}
	case "splitlines":
		return lines(s)
	}
	return throw("the method %s of a string is not supported", name)
}

func affix(s string, args []Value, has func(string, string) bool) Value {
	if len(args) == 1 {
		if l, ok := args[0].(*List); ok {
			return slices.ContainsFunc(l.Items, func(v Value) bool {
				return has(s, texts("startswith", []Value{v}, 1)[0])
			})
		}
	}
	return has(s, texts("startswith", args, 1)[0])
}

func split(s string, args []Value) Value {
	most := -1
	if len(args) == 2 {
		n, ok := whole(args[1])
		if !ok {
			throw("split with a count that is no number")
		}
		if most = int(n); most >= 0 {
			most++
		}
		args = args[:1]
	}
	var parts []string
	if len(args) == 0 || args[0] == nil {
		if most >= 0 {
			throw("split at whitespace with a count")
		}
		parts = strings.FieldsFunc(s, pythonSpace)
	} else {
		sep := texts("split", args, 1)[0]
		if sep == "" {
			throw("split at nothing")
		}
		parts = strings.SplitN(s, sep, most)
	}
	return stringList(parts)
}

func lines(s string) Value {
	if strings.ContainsAny(s, "\v\f\x1c\x1d\x1e\u0085\u2028\u2029") {
		throw("splitlines of unusual line ends")
	}
	s = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(s)
	if s = strings.TrimSuffix(s, "\n"); s == "" {
		return &List{}
	}
	return stringList(strings.Split(s, "\n"))
}

func stringList(parts []string) *List {
	out := &List{make([]Value, len(parts))}
	for i, p := range parts {
		out.Items[i] = p
	}
	return out
}

// maxRange bounds range().
const maxRange = 100_000

var globals = map[string]function{
	"namespace": func(_ *render, args []Value, named map[string]Value) Value { return newDict(args, named, true) },
	"dict":      func(_ *render, args []Value, named map[string]Value) Value { return newDict(args, named, false) },
	"range":     rangeOf,
	"raise_exception": func(_ *render, args []Value, _ map[string]Value) Value {
		return throw("the chat template refuses the request")
	},
	"strftime_now": func(r *render, args []Value, named map[string]Value) Value {
		only(args, named, 1)
		return strftime(r.now(), texts("strftime_now", args, 1)[0])
	},
}

func newDict(args []Value, named map[string]Value, open bool) *Dict {
	d := &Dict{}
	for _, a := range args {
		from, ok := a.(*Dict)
		if !ok {
			throw("a namespace made of a %s", typeName(a))
		}
		for i, k := range from.keys {
			d.Set(k, from.values[i])
		}
	}
	if !open && len(named) > 1 {
		throw("dict() with several names") // their order is not kept
	}
	for k, v := range named {
		d.Set(k, v)
	}
	d.open = open
	return d
}

func rangeOf(r *render, args []Value, named map[string]Value) Value {
	only(args, named, 3)
	bounds := []int64{0, 0, 1}
	for i, a := range args {
		n, ok := whole(a)
		if !ok {
			throw("range of a %s", typeName(a))
		}
		if len(args) == 1 {
			bounds[1] = n
		} else {
			bounds[i] = n
		}
	}
	out := &List{}
	from, to, step := bounds[0], bounds[1], bounds[2]
	if len(args) == 0 || step == 0 {
		throw("range with a step of 0")
	}
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		if out.Items = append(out.Items, i); len(out.Items) > maxRange {
			throw("a range of more than %d", maxRange)
		}
	}
	return out
}

// strftime formats a date as C's strftime does in the C locale.
func strftime(t time.Time, format string) string {
	layouts := map[byte]string{
		'd': "02", 'm': "01", 'Y': "2006", 'y': "06", 'b': "Jan", 'B': "January", 'a': "Mon", 'A': "Monday", 'H': "15",
		'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002",
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case !ok:
			throw("strftime_now with %%%c", format[i])
		default:
			b.WriteString(t.Format(layout))
		}
	}
	return b.String()
}
