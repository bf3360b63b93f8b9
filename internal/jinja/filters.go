package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type filter func(r *render, v Value, args []Value, named map[string]Value) Value

// filters are the filters of Jinja that chat templates use. init fills the map, because the filters
// map and select refer to it.
var filters map[string]filter

func init() {
	filters = map[string]filter{
		"tojson": toJSON, "trim": trimFilter, "length": bare(lengthFilter), "count": bare(lengthFilter),
		"join":    joinFilter,
		"default": defaultFilter, "d": defaultFilter,
		"upper": stringFilter(strings.ToUpper), "lower": stringFilter(strings.ToLower), "title": stringFilter(title),
		"capitalize": stringFilter(capitalize),
		"string":     stringFilter(func(s string) string { return s }),
		"safe":       stringFilter(func(s string) string { return s }),
		"replace":    replaceFilter, "first": bare(firstFilter), "last": bare(lastFilter), "list": bare(listFilter),
		"reverse": bare(reverseFilter), "items": bare(itemsFilter),
		"int": intFilter, "float": floatFilter, "abs": bare(absFilter), "map": mapFilter, "dictsort": dictSortFilter,
		"unique": bare(uniqueFilter),
		"select": selecting(false, true), "reject": selecting(false, false), "selectattr": selecting(true, true),
		"rejectattr": selecting(true, false),
	}
}

// arg returns the i-th argument, or the argument with this name, or else other.
func arg(args []Value, named map[string]Value, i int, name string, other Value) Value {
	if i < len(args) {
		return args[i]
	}
	if v, ok := named[name]; ok {
		return v
	}
	return other
}

// only refuses unknown arguments.
func only(args []Value, named map[string]Value, most int, names ...string) {
	if len(args) > most {
		throw("a filter or method with %d arguments", len(args))
	}
	for name := range named {
		if !slices.Contains(names, name) {
			throw("the argument %s= is not supported", name)
		}
	}
}

// bare makes a filter that takes no arguments.
func bare(change func(Value) Value) filter {
	return func(_ *render, v Value, args []Value, named map[string]Value) Value {
		only(args, named, 0)
		return change(v)
	}
}

func stringFilter(change func(string) string) filter {
	return func(r *render, v Value, args []Value, named map[string]Value) Value {
		only(args, named, 0)
		s := change(text(v))
		r.grow(len(s))
		return s
	}
}

// title and capitalize are exact for ASCII only; other characters have rules of their own.
func title(s string) string {
	return titled(s, func(b byte) bool { return strings.IndexByte("-([{<", b) >= 0 || unicode.IsSpace(rune(b)) })
}

// titled writes a letter large at the start and after a byte that separates, and else small.
func titled(s string, separates func(byte) bool) string {
	ascii(s)
	out, start := []byte(strings.ToLower(s)), true
	for i, b := range out {
		if start && b >= 'a' && b <= 'z' {
			out[i] -= 'a' - 'A'
		}
		start = separates(b)
	}
	return string(out)
}

func capitalize(s string) string {
	ascii(s)
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + strings.ToLower(s[1:])
}

func ascii(s string) {
	if strings.ContainsFunc(s, func(r rune) bool { return r >= utf8.RuneSelf }) {
		throw("title and capitalize of more than ASCII")
	}
}

func trimFilter(_ *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 1, "chars")
	return strip(text(v), arg(args, named, 0, "chars", nil), strings.TrimFunc)
}

// strip trims the characters in chars, or whitespace if chars is none.
func strip(s string, chars Value, trim func(string, func(rune) bool) string) Value {
	switch chars := chars.(type) {
	case nil:
		return trim(s, pythonSpace)
	case string:
		return trim(s, func(r rune) bool { return strings.ContainsRune(chars, r) })
	}
	return throw("characters to strip that are no string")
}

// pythonSpace is Python's str.isspace: White_Space and the separators U+001C to U+001F.
func pythonSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

func lengthFilter(v Value) Value {
	switch v := v.(type) {
	case string:
		return int64(utf8.RuneCountInString(v))
	case *Dict:
		return int64(len(v.keys))
	case *List, Undefined:
		return int64(len(each(v)))
	}
	return throw("the length of a %s", typeName(v))
}

func joinFilter(r *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 2, "d", "attribute")
	items := each(v)
	parts := make([]string, len(items))
	attribute := arg(args, named, 1, "attribute", nil)
	for i, x := range items {
		if attribute != nil {
			x = member(x, attribute)
		}
		parts[i] = text(x)
	}
	s := strings.Join(parts, text(arg(args, named, 0, "d", "")))
	r.grow(len(s))
	return s
}

// member follows a dotted name, as map(attribute=...) does.
func member(v Value, path Value) Value {
	name, ok := path.(string)
	if !ok {
		return item(v, path)
	}
	for _, part := range strings.Split(name, ".") {
		if i, err := strconv.ParseInt(part, 10, 64); err == nil {
			v = item(v, i)
		} else {
			v = item(v, part)
		}
	}
	return v
}

func defaultFilter(_ *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 2, "default_value", "boolean")
	if is[Undefined](v) || truth(arg(args, named, 1, "boolean", false)) && !truth(v) {
		return arg(args, named, 0, "default_value", "")
	}
	return v
}

func replaceFilter(r *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 2)
	if len(args) != 2 {
		throw("replace takes two texts")
	}
	s := strings.ReplaceAll(text(v), text(args[0]), text(args[1]))
	r.grow(len(s))
	return s
}

func firstFilter(v Value) Value {
	if items := each(v); len(items) > 0 {
		return items[0]
	}
	return Undefined{}
}

func lastFilter(v Value) Value {
	if items := each(v); len(items) > 0 {
		return items[len(items)-1]
	}
	return Undefined{}
}

func listFilter(v Value) Value {
	return &List{each(v)}
}

func reverseFilter(v Value) Value {
	items := slices.Clone(each(v))
	slices.Reverse(items)
	if _, ok := v.(string); ok {
		return text(joinFilter(&render{limit: Limits{Bytes: math.MaxInt / 16}, out: &strings.Builder{}}, &List{items},
			nil, nil))
	}
	return &List{items}
}

func itemsFilter(v Value) Value {
	if is[Undefined](v) {
		return &List{}
	}
	d, ok := v.(*Dict)
	if !ok {
		throw("the items of a %s", typeName(v))
	}
	return pairs(d)
}

func pairs(d *Dict) *List {
	all := make([]Value, len(d.keys))
	for i, k := range d.keys {
		all[i] = &List{[]Value{k, d.values[i]}}
	}
	return &List{all}
}

func dictSortFilter(_ *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 0)
	l := itemsFilter(v).(*List)
	key := func(v Value) string { return strings.ToLower(text(v.(*List).Items[0])) }
	slices.SortStableFunc(l.Items, func(a, b Value) int { return strings.Compare(key(a), key(b)) })
	return l
}

func uniqueFilter(v Value) Value {
	out := &List{}
	for _, x := range each(v) {
		if !is[string](x) {
			throw("unique of more than strings")
		}
		if !contains(out, x) {
			out.Items = append(out.Items, x)
		}
		if len(out.Items) > 1000 {
			throw("unique of more than 1000 values")
		}
	}
	return out
}

func intFilter(_ *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 1, "default")
	switch x := v.(type) {
	case float64:
		if math.Abs(x) < 1<<53 {
			return int64(x)
		}
	case string:
		if n, err := strconv.ParseInt(strings.TrimFunc(x, pythonSpace), 10, 64); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(strings.TrimFunc(x, pythonSpace), 64); err == nil && math.Abs(f) < 1<<53 {
			return int64(f)
		}
	default:
		if n, ok := whole(v); ok {
			return n
		}
	}
	return arg(args, named, 0, "default", int64(0))
}

func floatFilter(_ *render, v Value, args []Value, named map[string]Value) Value {
	only(args, named, 1, "default")
	if f, ok := number(v); ok {
		return f
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, pythonSpace), 64); err == nil {
			return f
		}
	}
	return arg(args, named, 0, "default", float64(0))
}

func absFilter(v Value) Value {
	if n, ok := whole(v); ok {
		return max(n, -n)
	}
	f, ok := number(v)
	if !ok {
		throw("abs of a %s", typeName(v))
	}
	return math.Abs(f)
}

func mapFilter(r *render, v Value, args []Value, named map[string]Value) Value {
	out := &List{}
	for _, x := range each(v) {
		r.step()
		if len(args) > 0 {
			out.Items = append(out.Items, filters[text(args[0])](r, x, args[1:], named))
			continue
		}
		only(args, named, 0, "attribute", "default")
		x = member(x, named["attribute"])
		if is[Undefined](x) && named["default"] != nil {
			x = named["default"]
		}
		out.Items = append(out.Items, x)
	}
	return out
}

// selecting returns the filter select, reject, selectattr or rejectattr.
func selecting(attribute, keep bool) filter {
	return func(r *render, v Value, args []Value, named map[string]Value) Value {
		only(nil, named, 0)
		out := &List{}
		for _, x := range each(v) {
			r.step()
			tested, rest := x, args
			if attribute {
				if len(rest) == 0 {
					throw("selectattr without an attribute")
				}
				tested, rest = member(x, rest[0]), rest[1:]
			}
			ok := truth(tested)
			if len(rest) > 0 {
				ok = tests[text(rest[0])](tested, rest[1:])
			}
			if ok == keep {
				out.Items = append(out.Items, x)
			}
		}
		return out
	}
}
