package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// field is one setting of the struct: a value that a default, a TOML key, an environment variable
// or a flag can set.
type field struct {
	section string // dotted path of the tables around it; "" at the top level
	key     string
	value   reflect.Value
	help    string
	def     string
	hasDef  bool
	filled  bool   // setting it to nothing is refused
	was     string // the older path, from the tag was of the field or its section; "": none
	flag    string // without dashes; "": none
	short   string // a second environment name; "": none
	oneof   []string
	given   bool // set by a variable or a flag

	variable string // the variable that has set it; empty: none, or a flag has replaced its value
	spaced   bool   // elements of the list in one text are separated by spaces, not by commas
}

// elsewhere returns the settings of other sections with this key. elsewhere returns nothing if
// there are more than three.
func (s *schema) elsewhere(key string) string {
	var all []string
	for _, f := range s.fields {
		if f.key == key {
			all = append(all, f.path())
		}
	}
	if len(all) == 0 || len(all) > 3 {
		return ""
	}
	return "; did you mean " + strings.Join(all, " or ") + "?"
}

// section is a nested struct: a TOML table with keys of its own.
type section struct {
	path  string
	was   string // the older path; "": none
	help  string
	value reflect.Value
}

// envs returns the present and the older prefix of the section's variables.
func (s *section) envs() []string {
	switch {
	case s.path == "":
		return nil
	case s.was == "":
		return []string{envName(s.path) + "_"}
	}
	return []string{envName(s.path) + "_", envName(s.was) + "_"}
}

// envName returns the variable of the setting at path.
func envName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// schema lists a struct's settings and sections in the order of their declaration.
type schema struct {
	fields   []*field
	sections []section
	renames  []rename // older names in the user's configuration
	gone     []string // paths of settings that there were once
}

func (f *field) path() string { return join(f.section, f.key) }

func (f *field) env() string { return envName(f.path()) }

// envs returns the names of the variables that set the field.
func (f *field) envs() []string {
	if f.short == "" {
		return []string{f.env()}
	}
	return []string{f.env(), f.short}
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}

// inspect reads the tags of the struct that dst points to. inspect's error is a mistake in the
// program, not in the user's configuration.
func inspect(dst any) (*schema, error) {
	v := reflect.ValueOf(dst)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("config: want a pointer to a struct, got %T", dst)
	}
	s := &schema{}
	if err := s.walk(v.Elem(), ""); err != nil {
		return nil, err
	}
	return s, s.checkNames()
}

func (s *schema) walk(v reflect.Value, path string) error {
	if path != "" || len(s.sections) == 0 {
		s.sections = append(s.sections, section{path: path, value: v})
	}
	return s.walkInto(v, path)
}

func (s *schema) walkInto(v reflect.Value, path string) error {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		if sf.Tag.Get("toml") == inline {
			if err := s.walkInto(v.Field(i), path); err != nil {
				return err
			}
			continue
		}
		if err := s.member(sf, v.Field(i), path); err != nil {
			return err
		}
	}
	return nil
}

// inline is the tag of a struct whose keys belong to the table around it.
const inline = ",inline"

// keyed lists the fields of a struct type that have keys. The fields of an inlined struct take its
// place.
func keyed(t reflect.Type) (fields []reflect.StructField) {
	for i := range t.NumField() {
		sf := t.Field(i)
		switch key := sf.Tag.Get("toml"); {
		case !sf.IsExported() || key == "" || key == "-":
		case key == inline:
			for _, inner := range keyed(sf.Type) {
				inner.Index = append(slices.Clone(sf.Index), inner.Index...)
				fields = append(fields, inner)
			}
		default:
			fields = append(fields, sf)
		}
	}
	return fields
}

// twinned tells whether the file has the table at path as a list, [[path]], which another field
// with the same key holds.
func (s *schema) twinned(path string) bool {
	return slices.ContainsFunc(s.fields, func(f *field) bool {
		return f.isList() && f.value.Len() > 0 && (f.path() == path || strings.HasPrefix(path, f.path()+"."))
	})
}

// emptyTwin tells whether f is an empty list whose key is also a section's.
func (s *schema) emptyTwin(f *field) bool {
	return f.isList() && f.value.Len() == 0 && slices.ContainsFunc(s.sections, func(sec section) bool {
		return sec.path == f.path()
	})
}

func (s *schema) member(sf reflect.StructField, v reflect.Value, path string) error {
	key := sf.Tag.Get("toml")
	switch {
	case !sf.IsExported() || key == "-":
		return nil
	case key == "":
		return fmt.Errorf("config: field %s of %q has no toml tag", sf.Name, path)
	case isTable(v.Type()):
		at, first := len(s.sections), len(s.fields)
		if err := s.walk(v, join(path, key)); err != nil {
			return err
		}
		s.sections[at].help = sf.Tag.Get("help")
		for _, old := range strings.Fields(sf.Tag.Get("gone")) {
			s.gone = append(s.gone, join(join(path, key), old))
		}
		if was := sf.Tag.Get("was"); was != "" {
			s.movedFrom(at, first, was)
		}
		return nil
	}
	if !supported(v.Type()) {
		return fmt.Errorf("config: field %s has type %s, which no text can set", join(path, key), v.Type())
	}
	s.fields = append(s.fields, newField(sf, v, path, key))
	return nil
}

func newField(sf reflect.StructField, v reflect.Value, path, key string) *field {
	f := &field{section: path, key: key, value: v, help: sf.Tag.Get("help"), short: sf.Tag.Get("env")}
	f.was = sf.Tag.Get("was")
	f.spaced = sf.Tag.Get("split") == "space" || v.Kind() == reflect.Slice && isText(v.Type().Elem())
	f.filled = sf.Tag.Get("empty") == "refused"
	f.def, f.hasDef = sf.Tag.Lookup("default")
	if list := sf.Tag.Get("oneof"); list != "" {
		f.oneof = strings.Split(list, "|")
	}
	name, named := sf.Tag.Lookup("flag")
	switch {
	case name == "-":
	case named:
		f.flag = name
	case textual(v.Type()):
		f.flag = f.path()
	}
	return f
}

// checkNames refuses two settings with the same flag or environment name.
func (s *schema) checkNames() error {
	seen := map[string]string{}
	for _, f := range s.fields {
		names := f.envs()
		if f.flag != "" {
			names = append(names, "--"+plain(f.flag))
		}
		if f.was != "" {
			names = append(names, f.oldEnv())
		}
		if old := f.oldFlag(); old != "" {
			names = append(names, "--"+plain(old))
		}
		for _, n := range names {
			if other, dup := seen[n]; dup {
				return fmt.Errorf("config: %s and %s are both named %s", other, f.path(), n)
			}
			seen[n] = f.path()
		}
	}
	return nil
}

var textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()

func isText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textUnmarshaler) }

// isTable tells whether t is a struct whose keys are separate settings.
func isTable(t reflect.Type) bool { return t.Kind() == reflect.Struct && !isText(t) }

// textual tells whether a value of type t has a text form, so that a flag or an environment
// variable can set it.
func textual(t reflect.Type) bool {
	if isText(t) {
		return true
	}
	switch t.Kind() {
	case reflect.String, reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64,
		reflect.Uint32, reflect.Uint64, reflect.Float64:
		return true
	case reflect.Slice:
		return textual(t.Elem())
	}
	return false
}

func supported(t reflect.Type) bool {
	if textual(t) {
		return true
	}
	switch t.Kind() {
	case reflect.Slice:
		return t.Elem().Kind() == reflect.Struct
	case reflect.Map:
		return t.Key().Kind() == reflect.String && (textual(t.Elem()) || t.Elem().Kind() == reflect.Struct)
	}
	return false
}
