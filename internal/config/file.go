package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// Problem is one mistake in the user's configuration.
type Problem struct {
	Where  string // "router.toml:12", "CGN_LIMITS_MAX_BODY", "--listen"; "" if several sources are possible
	Field  string // "limits.max_body"; "" if no setting is concerned
	Value  string // as written; "" if it does not help
	Reason string // the mistake, and what to write instead

	cause error // the error of Validate or Examine; nil for other problems
}

// Unwrap returns the error behind Reason; nil if there is none.
func (p *Problem) Unwrap() error { return p.cause }

func (p *Problem) Error() string {
	var b strings.Builder
	if p.Where != "" {
		b.WriteString(p.Where + ": ")
	}
	b.WriteString(p.Field)
	if p.Value != "" {
		b.WriteString(" = " + p.Value)
	}
	if p.Field != "" {
		b.WriteString(": ")
	}
	b.WriteString(p.Reason)
	return b.String()
}

// fileReader copies one decoded TOML document into the struct.
type fileReader struct {
	name     string
	schema   *schema
	lines    lineIndex // nil before read
	problems []error
}

// read applies a TOML document to the struct that root points to, and returns all problems.
func (r *fileReader) read(doc string, root reflect.Value) []error {
	var tree map[string]any
	if _, err := toml.Decode(doc, &tree); err != nil {
		if pe, ok := errors.AsType[toml.ParseError](err); ok {
			p := &Problem{Where: fmt.Sprintf("%s:%d", r.name, pe.Position.Line), Reason: plainly(pe, doc), cause: pe}
			r.unquoted(p, pe.Position.Line, doc)
			return []error{p}
		}
		return []error{&Problem{Where: r.name, Reason: err.Error()}}
	}
	r.lines = indexLines(doc)
	r.renameAll(tree)
	r.table(root, tree, "")
	return r.problems
}

// plainly returns the parser's message. If a key is written both as [key] and as [[key]], plainly
// explains that instead.
func plainly(e toml.ParseError, doc string) string {
	_, key, _ := strings.Cut(e.Message, "Key '")
	key, rest, _ := strings.Cut(key, "'")
	if strings.Contains(rest, "already") && header(doc, "["+key+"]") && header(doc, "[["+key+"]]") {
		return key + " is written as one table, [" + key + "], and as a list of them, [[" + key + "]]; write one of " +
			"the two"
	}
	return e.Message
}

// unquoted names the key in a line that the parser has refused in p. For a value that lacks quotes
// it says what to write instead.
func (r *fileReader) unquoted(p *Problem, number int, doc string) {
	for path, n := range indexLines(doc) {
		key, value, isKey := strings.Cut(strings.Split(doc, "\n")[n-1], "=")
		if n != number || !isKey {
			continue
		}
		p.Field = path
		value, _, _ = strings.Cut(value, "#")
		value = strings.TrimSpace(value)
		_, err := toml.Decode("x = "+value, &map[string]any{})
		if err == nil || value == "" || strings.IndexAny(value, "\"'[{") == 0 {
			return
		}
		if _, err := strconv.ParseFloat(value, 64); err == nil {
			p.Value, p.Reason = value, "is beyond the whole numbers that a computer counts with"
			return
		}
		p.Value, p.Reason = value, fmt.Sprintf("put it in quotes: %s = %q", strings.TrimSpace(key), value)
		var words []string // that the setting may have
		if i := slices.IndexFunc(r.schema.fields, func(f *field) bool { return f.path() == path }); i >= 0 {
			words = r.schema.fields[i].words()
		}
		switch strings.ToLower(value) {
		case "yes", "no", "on", "off", "true", "false":
			if len(words) == 0 {
				p.Reason = "write true or false"
			} else if !slices.Contains(words, value) {
				p.Reason = oneOf(words)
			}
		}
	}
}

// oneOf says how to write a setting that has one of these words.
func oneOf(words []string) string {
	return "must be one of " + strings.Join(words, ", ") + ", in quotes"
}

// header tells whether a line of doc begins with text.
func header(doc, text string) bool {
	for line := range strings.Lines(doc) {
		if strings.HasPrefix(strings.TrimSpace(line), text) {
			return true
		}
	}
	return false
}

func (r *fileReader) table(v reflect.Value, tree map[string]any, path string) {
	members := map[string][]reflect.StructField{}
	for _, sf := range keyed(v.Type()) {
		key := sf.Tag.Get("toml")
		members[key] = append(members[key], sf)
	}
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		at := join(path, key)
		if len(members[key]) == 0 {
			if slices.Contains(r.schema.gone, at) {
				r.fail(&Problem{Field: at, Reason: goneReason}, at)
				continue
			}
			hint := cmp.Or(didYouMean(key, slices.Sorted(maps.Keys(members))), r.schema.elsewhere(key))
			r.fail(&Problem{Field: at, Reason: "unknown key" + hint}, at)
			continue
		}
		sf := form(members[key], tree[key])
		r.set(sf, v.FieldByIndex(sf.Index), tree[key], at)
	}
}

// form returns the field for a key that may be a table or a list of tables.
func form(fields []reflect.StructField, raw any) reflect.StructField {
	_, tables := raw.([]map[string]any)
	_, list := raw.([]any)
	for _, sf := range fields {
		if (sf.Type.Kind() == reflect.Slice) == (tables || list) {
			return sf
		}
	}
	return fields[0]
}

// set puts one TOML value into a member of a struct.
func (r *fileReader) set(sf reflect.StructField, v reflect.Value, raw any, at string) {
	if sub, ok := raw.(map[string]any); ok && isTable(v.Type()) {
		r.table(v, sub, at)
		return
	}
	if _, table := raw.(map[string]any); table && v.Kind() == reflect.Slice && isTable(v.Type().Elem()) {
		r.fail(&Problem{Field: at, Reason: "is a list of tables; write [[" + at + "]] instead of [" + at + "]"}, at)
		return
	}
	f := newField(sf, v, "", at)
	fresh := reflect.New(v.Type()).Elem()
	fresh.Set(v)
	if b, ok := raw.(bool); ok && v.Kind() == reflect.String && slices.Contains(f.oneof, strconv.FormatBool(b)) {
		raw = strconv.FormatBool(b) // true and false are words of this setting, with quotes or without
	}
	err := r.assign(fresh, raw, at)
	if err == nil {
		err = f.allowed(fresh)
	} else if len(f.oneof) > 0 && v.Kind() == reflect.String {
		err = errors.New(oneOf(f.words()))
	}
	if err != nil {
		r.fail(f.problem(f.key, written(raw), err), at)
		return
	}
	v.Set(fresh)
}

// written formats a TOML value about as its author wrote it.
func written(raw any) string {
	if s, ok := raw.(string); ok {
		return strconv.Quote(s)
	}
	return fmt.Sprint(raw)
}

// assign converts raw to the type of v. Tables inside raw report their own problems.
func (r *fileReader) assign(v reflect.Value, raw any, at string) error {
	switch t := raw.(type) {
	case string:
		if v.Kind() == reflect.String || isText(v.Type()) {
			return setText(v, t)
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(t)
			return nil
		}
	case int64:
		if isSize := v.Type() == reflect.TypeFor[Size](); isSize || numeric(v) {
			return setText(v, fmt.Sprint(t))
		}
	case float64:
		if v.Kind() == reflect.Float64 {
			v.SetFloat(t)
			return nil
		}
	case []any:
		if v.Kind() == reflect.Slice {
			return list(r, v, t, at)
		}
	case []map[string]any:
		if v.Kind() == reflect.Slice {
			return list(r, v, t, at)
		}
	case map[string]any:
		return r.nested(v, t, at)
	}
	return fmt.Errorf("must be %s", describe(v.Type()))
}

func list[T any](r *fileReader, v reflect.Value, raw []T, at string) error {
	all := reflect.MakeSlice(v.Type(), 0, len(raw))
	for i, one := range raw {
		e, err := newElement(v.Type().Elem())
		if err != nil {
			return err
		}
		if err := r.assign(e, one, fmt.Sprintf("%s[%d]", at, i)); err != nil {
			return fmt.Errorf("element %d: %w", i+1, err)
		}
		all = reflect.Append(all, e)
	}
	v.Set(all)
	return nil
}

func (r *fileReader) nested(v reflect.Value, raw map[string]any, at string) error {
	switch v.Kind() {
	case reflect.Struct:
		r.table(v, raw, at)
		return nil
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		for _, key := range slices.Sorted(maps.Keys(raw)) {
			e, err := newElement(v.Type().Elem())
			if err != nil {
				return err
			}
			if err := r.assign(e, raw[key], join(at, key)); err != nil {
				return fmt.Errorf("%s: %w", key, err)
			}
			m.SetMapIndex(reflect.ValueOf(key), e)
		}
		v.Set(m)
		return nil
	}
	return fmt.Errorf("must be %s, not a table", describe(v.Type()))
}

// locate adds the line in the file, or the variable, to a problem of Validate or Examine, unless a
// flag has set it.
func (r *fileReader) locate(err error) error {
	p, ok := err.(*Problem)
	if !ok || p.Where != "" {
		return err
	}
	path, _, _ := strings.Cut(p.Reason, ":")
	if i := slices.IndexFunc(r.schema.fields, func(f *field) bool { return f.given && f.path() == path }); i >= 0 {
		p.Where = r.schema.fields[i].variable
		return p
	}
	n := r.lines[path]
	if n == 0 && strings.Contains(path, "[") {
		n = r.lines.of(path)
	}
	if n > 0 {
		p.Where = fmt.Sprintf("%s:%d", r.name, n)
	}
	return p
}

func (r *fileReader) fail(p *Problem, at string) {
	p.Where = r.at(at)
	r.problems = append(r.problems, p)
}

func numeric(v reflect.Value) bool {
	return !isText(v.Type()) && (v.CanInt() || v.CanUint() || v.CanFloat())
}

// describe returns a type's name for a user: "a string", "a duration".
func describe(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return `a duration like "5s"`
	case t == reflect.TypeFor[Size]():
		return `a size like "64MiB"`
	case t.Kind() == reflect.Slice:
		return "a list, each element " + describe(t.Elem())
	case t.Kind() == reflect.Map, isTable(t):
		return "a table"
	case t.Kind() == reflect.Bool:
		return "true or false, without quotes"
	}
	return "a" + article(typeName(t))
}

func article(name string) string {
	if name == "integer" {
		return "n " + name
	}
	return " " + name
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[Duration]():
		return "duration"
	case t == reflect.TypeFor[Size]():
		return "size"
	case t.Kind() == reflect.Slice && isText(t):
		return "string"
	case t.Kind() == reflect.Slice:
		return "list of " + typeName(t.Elem())
	case t.Kind() == reflect.Map:
		return "tables by name"
	case isTable(t):
		return "table"
	case isText(t) || t.Kind() == reflect.String:
		return "string"
	case t.Kind() == reflect.Bool:
		return "boolean"
	case t.Kind() == reflect.Float64:
		return "number"
	}
	return "integer"
}
