package config

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
)

// setText sets v from a text of a default, a flag or the environment.
func setText(v reflect.Value, text string) error {
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return errors.New("not a boolean; write true or false")
		}
		v.SetBool(b)
	case reflect.Int, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return notNumber(err, "not an integer")
		}
		v.SetInt(n)
	case reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return notNumber(err, "not a non-negative integer")
		}
		v.SetUint(n)
	case reflect.Float64:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return notNumber(err, "not a number")
		}
		v.SetFloat(f)
	default:
		return fmt.Errorf("cannot be set from text")
	}
	return nil
}

func notNumber(err error, what string) error {
	if errors.Is(err, strconv.ErrRange) {
		return errors.New("out of range")
	}
	return errors.New(what)
}

// split splits the text of a list. A text that starts with '[' is a TOML array. Otherwise commas
// separate the elements, or spaces if an element may hold commas.
func (f *field) split(text string) ([]string, error) {
	switch {
	case strings.HasPrefix(strings.TrimSpace(text), "["):
		var doc struct{ V []string }
		if _, err := toml.Decode("V = "+text, &doc); err != nil {
			return nil, errors.New("not a TOML array of strings")
		}
		return doc.V, nil
	case f.spaced:
		return strings.Fields(text), nil
	case text == "":
		return nil, nil
	}
	return strings.Split(text, ","), nil
}

// setList sets a slice from a text of the environment or a default.
func (f *field) setList(v reflect.Value, text string) error {
	words, err := f.split(text)
	if err != nil {
		return err
	}
	list := reflect.MakeSlice(v.Type(), 0, len(words))
	for _, w := range words {
		if err := appendText(&list, strings.TrimSpace(w)); err != nil {
			return fmt.Errorf("%q: %w", w, err)
		}
	}
	v.Set(list)
	return nil
}

// appendText adds one element, with its own defaults, to *list.
func appendText(list *reflect.Value, text string) error {
	e, err := newElement(list.Type().Elem())
	if err != nil {
		return err
	}
	if err := setText(e, text); err != nil {
		return err
	}
	*list = reflect.Append(*list, e)
	return nil
}

// newElement makes an addressable value of type t with its defaults.
func newElement(t reflect.Type) (reflect.Value, error) {
	p := reflect.New(t)
	if t.Kind() != reflect.Struct || len(keyed(t)) == 0 {
		return p.Elem(), nil
	}
	return p.Elem(), Defaults(p.Interface())
}

func (f *field) isList() bool { return f.value.Kind() == reflect.Slice && !isText(f.value.Type()) }

// setFromText sets the whole field from one text and checks its oneof list. On an error the field
// keeps its old value.
func (f *field) setFromText(text string) error {
	fresh := reflect.New(f.value.Type()).Elem()
	fresh.Set(f.value)
	set := setText
	if f.isList() {
		set = f.setList
	}
	if err := set(fresh, text); err != nil {
		return err
	}
	if err := f.allowed(fresh); err != nil {
		return err
	}
	f.value.Set(fresh)
	return nil
}

// allowed checks a value that somebody has set.
func (f *field) allowed(v reflect.Value) error {
	if f.filled && v.IsZero() {
		return errors.New("is empty; leave it out or name one")
	}
	if len(f.oneof) == 0 {
		return nil
	}
	words := []string{format(v)}
	if list, ok := v.Interface().([]string); ok {
		words = list
	}
	for _, w := range words {
		if !slices.Contains(f.oneof, w) {
			return fmt.Errorf("must be one of %s%s", strings.Join(f.words(), ", "), didYouMean(w, f.oneof))
		}
	}
	return nil
}

// format formats a scalar so that setText can parse it.
func format(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return "?"
		}
		return string(text)
	}
	return fmt.Sprint(v.Interface())
}
