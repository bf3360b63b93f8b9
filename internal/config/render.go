package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/markdown"
)

func writeHelp(w io.Writer, s *schema, o Options) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Usage: %s [flags]\n", o.Program)
	if o.About != "" {
		fmt.Fprintf(&b, "\n%s\n", o.About)
	}
	b.WriteString("\nA value is taken from the flag, else the environment, else the file, else the default.\nIn the " +
		"name of a flag '.', '_' and '-' mean the same.\nThe exit status is 1 after a failure, and 2 where flags are " +
		"not understood.\n\n")
	row := func(name, help string) { fmt.Fprintf(&b, "  %s\n        %s\n", name, help) }
	row("--"+fileFlag+" FILE", "TOML file to read (env CGN_CONFIG)")
	row("--check-config", "check the configuration and the files it names, print it as it would be used, and exit; "+
		"nothing is started, bound or written, so it does not tell whether a port is taken")
	row("--version", "print the version and exit")
	row("--help", "print this text and exit")
	for _, sec := range s.sections {
		title := false
		for _, f := range s.fields {
			if f.section != sec.path || f.flag == "" {
				continue
			}
			if !title && sec.path != "" {
				b.WriteString("\n" + strings.TrimSpace(fmt.Sprintf("[%s] %s", sec.path, sec.help)) + "\n")
			}
			title = true
			row("--"+f.flag+flagArgument(f), f.sentence())
		}
	}
	if err := helpTables(s, row, func(title string) { b.WriteString("\n" + title + "\n") }); err != nil {
		return err
	}
	_, err := w.Write(b.Bytes())
	return err
}

// helpTables prints the keys of tables inside lists and maps of tables, which have no flags of
// their own.
func helpTables(s *schema, row func(name, help string), title func(text string)) error {
	for _, f := range s.fields {
		e, heading, err := f.elements()
		if err != nil {
			return err
		}
		if e == nil {
			continue
		}
		title("In the file, " + heading + ": " + f.help)
		for _, key := range e.fields {
			help := key.help
			if key.def != "" {
				help += " (default " + key.def + ")"
			}
			row(key.path()+flagArgument(key), help)
		}
	}
	return nil
}

// elements returns the schema of the tables inside a list or map of tables, and the form of their
// heading; nil for other fields.
func (f *field) elements() (s *schema, heading string, err error) {
	t := f.value.Type()
	if t.Kind() != reflect.Slice && t.Kind() != reflect.Map || t.Elem().Kind() != reflect.Struct {
		return nil, "", nil
	}
	heading = "[[" + f.path() + "]]"
	if t.Kind() == reflect.Map {
		heading = "[" + f.path() + ".NAME]"
	}
	s, err = inspect(reflect.New(t.Elem()).Interface())
	return s, heading, err
}

func flagArgument(f *field) string {
	switch {
	case f.value.Kind() == reflect.Bool:
		return ""
	case f.isList():
		return " " + strings.ToUpper(typeName(f.value.Type().Elem())) + "..."
	}
	return " " + strings.ToUpper(typeName(f.value.Type()))
}

// sentence returns the help text with the allowed values, the default and the environment name.
func (f *field) sentence() string {
	notes := []string{}
	if len(f.oneof) > 0 {
		notes = append(notes, strings.Join(f.words(), "|"))
	}
	switch {
	case f.isList() && f.spaced:
		notes = append(notes, "repeatable")
	case f.isList():
		notes = append(notes, "repeatable, or with commas between")
	}
	if f.def != "" {
		notes = append(notes, "default "+f.def)
	}
	return fmt.Sprintf("%s (%s)", f.help, strings.Join(append(notes, "env "+strings.Join(f.envs(), " or ")), ", "))
}

// words returns the values of oneof that are not empty.
func (f *field) words() []string {
	return slices.DeleteFunc(slices.Clone(f.oneof), func(w string) bool { return w == "" })
}

// Reference writes the settings of the struct that cfg points to as Markdown, with one table per
// section. Reference ignores the values of cfg.
func Reference(w io.Writer, title string, cfg any) error {
	s, err := inspect(reflect.New(reflect.TypeOf(cfg).Elem()).Interface())
	if err != nil {
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "## %s\n", title)
	for _, sec := range s.sections {
		if err := referenceSection(&b, s, sec); err != nil {
			return err
		}
	}
	_, err = io.WriteString(w, markdown.Wrap(b.String()))
	return err
}

func referenceSection(b *bytes.Buffer, s *schema, sec section) error {
	fields := slices.Clone(s.fields)
	fields = slices.DeleteFunc(fields, func(f *field) bool { return f.section != sec.path })
	if len(fields) == 0 {
		return nil
	}
	if sec.path != "" {
		fmt.Fprintf(b, "\n### `[%s]`\n", sec.path)
	}
	if sec.help != "" {
		fmt.Fprintf(b, "\n%s\n", sec.help)
	}
	if sec.was != "" {
		fmt.Fprintf(b, "\nThe older name `[%s]`, with its variables and flags, is taken with a warning.\n", sec.was)
	}
	b.WriteString("\n| key | type | default | environment | flag | meaning |\n|---|---|---|---|---|---|\n")
	for _, f := range fields {
		b.WriteString(f.row(true))
	}
	for _, f := range fields {
		if err := referenceElements(b, f); err != nil {
			return err
		}
	}
	return nil
}

// referenceElements writes the keys of tables inside a list or map of tables.
func referenceElements(b *bytes.Buffer, f *field) error {
	s, heading, err := f.elements()
	if s == nil || err != nil {
		return err
	}
	fmt.Fprintf(b, "\n### `%s`\n\n| key | type | default | meaning |\n|---|---|---|---|\n", heading)
	for _, e := range s.fields {
		b.WriteString(e.row(false))
	}
	return nil
}

func (f *field) row(settable bool) string {
	help := f.help
	if len(f.oneof) > 0 {
		help = strings.TrimSuffix(help, ".") + "; one of `" + strings.Join(f.words(), "`, `") + "`"
	}
	cells := []string{code(f.key), typeName(f.value.Type()), code(f.def)}
	if !settable {
		cells[0] = code(f.path())
	} else {
		env, flag := "", ""
		if textual(f.value.Type()) {
			env = strings.Join(f.envs(), "`, `")
		}
		if f.flag != "" {
			flag = "--" + f.flag
		}
		cells = append(cells, code(env), code(flag))
	}
	return "| " + strings.Join(append(cells, strings.ReplaceAll(help, "|", `\|`)), " | ") + " |\n"
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// writeEffective writes the settings as TOML, after the notes and the ignored variables.
func writeEffective(w io.Writer, s *schema, program string, ignored, notes []string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s: the configuration is valid\n", program)
	for _, note := range notes {
		fmt.Fprintf(&b, "# warning: %s\n", note)
	}
	for _, name := range ignored {
		fmt.Fprintf(&b, "# %s is in the environment and is no setting\n", quote(name))
	}
	for _, sec := range s.sections {
		title := sec.path == ""
		for _, f := range s.fields {
			if f.section != sec.path || s.twinned(sec.path) || s.emptyTwin(f) || f.filled && f.value.IsZero() {
				continue
			}
			if !title {
				fmt.Fprintf(&b, "\n[%s]\n", sec.path)
				title = true
			}
			fmt.Fprintf(&b, "%s = %s\n", f.key, literal(f.value))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// literal writes v as an inline TOML value.
func literal(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Bool, v.CanFloat(), numeric(v):
		return fmt.Sprint(v.Interface())
	case v.Kind() == reflect.Struct:
		return literalTable(v)
	case v.Kind() == reflect.Slice && !isText(v.Type()):
		parts := make([]string, v.Len())
		for i := range parts {
			parts[i] = literal(v.Index(i))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case v.Kind() == reflect.Map:
		return literalMap(v)
	}
	return quote(format(v))
}

// quote writes s as a basic TOML string. quote replaces bytes that are not UTF-8.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func literalTable(v reflect.Value) string {
	var parts []string
	for _, sf := range keyed(v.Type()) {
		if value := v.FieldByIndex(sf.Index); !value.IsZero() {
			parts = append(parts, sf.Tag.Get("toml")+" = "+literal(value))
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func literalMap(m reflect.Value) string {
	var parts []string
	for _, k := range m.MapKeys() {
		parts = append(parts, quote(k.String())+" = "+literal(m.MapIndex(k)))
	}
	slices.Sort(parts)
	return "{" + strings.Join(parts, ", ") + "}"
}
