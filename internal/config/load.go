package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/BurntSushi/toml"

	"github.com/cognitora/dataplane/internal/rights"
)

// ErrAnswered means that the command line asked a question (--help, --version, --check-config), and
// that Options.Out has the answer. Exit with status 0.
var ErrAnswered = errors.New("config: the command line asked a question and was answered")

// fileFlag is the flag for the TOML file. CGN_CONFIG names the file too.
const fileFlag = "config"

// Options are the sources of the values. The zero value reads nothing and leaves the defaults.
type Options struct {
	// name in usage and messages, like "cgn-router"; settings of other programs in the environment
	// are not problems
	Program string
	About   string    // what the program does, for --help
	Version string    // answer to --version
	Args    []string  // command line without the program name
	Env     []string  // "NAME=value", as os.Environ returns it
	Out     io.Writer // receives help, version and the checked configuration; nil: os.Stdout

	// called for each CGN_* variable that is no program's setting, or another program's in a
	// section that this one has too; may be nil
	Ignored func(variable string)
	// called for each setting ("router.mode") that a variable has set; may be nil
	FromVariable func(setting, variable string)
	// called for each older name in use ("router.toml:3: admission"), with the present name; may be
	// nil
	Renamed  func(given, name string)
	ReadFile func(name string) ([]byte, error) // nil: rights.ReadFile
}

// Error holds all problems of a configuration, found in one pass.
type Error struct {
	Problems []error
	Misused  bool // a flag or argument was not understood
	Unread   bool // a setting could not be read, so that it does not have the value that was meant
}

func (e *Error) Error() string {
	if len(e.Problems) == 1 {
		return "configuration: " + e.Problems[0].Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "configuration: %d problems", len(e.Problems))
	for _, p := range e.Problems {
		b.WriteString("\n  " + p.Error())
	}
	return b.String()
}

// Unwrap returns each problem to errors.Is and errors.As.
func (e *Error) Unwrap() []error { return e.Problems }

// Missing is an error of Validate about a setting that was not given. The error is left out if some
// given setting could not be read, because that may be the missing one.
type Missing struct{ Err error }

func (m Missing) Error() string { return m.Err.Error() }

// Unwrap returns Err.
func (m Missing) Unwrap() error { return m.Err }

// Validator is a struct, at any depth, that can check itself. A Validator joins several problems
// with errors.Join.
type Validator interface{ Validate() error }

// Examiner is a struct, at any depth, that names things outside: files, directories, programs.
// Examine reports what would make a start fail, without binding, making or changing anything.
// --check-config calls it, and a start that has failed already. An Examiner joins several problems
// with errors.Join.
type Examiner interface{ Examine() error }

// Adviser is a struct, at any depth, that can warn about valid settings. --check-config prints the
// warnings.
type Adviser interface{ Advise() []string }

// Load fills the struct that dst points to. Load applies defaults, then the TOML file, then the
// environment, then flags. Then it calls every Validate. For --check-config, or if a Validate
// failed, it calls every Examine too, so that one start names all problems. Load returns nil,
// ErrAnswered, or an *Error with all problems. Load keeps nothing of dst.
func Load(dst any, o Options) error {
	s, err := inspect(dst)
	if err != nil {
		return err
	}
	cl := parseArgs(s, o)
	switch {
	case cl.help:
		return answered(writeHelp(o.out(), s, o))
	case cl.version:
		_, err := fmt.Fprintln(o.out(), o.Program, o.Version)
		return answered(err)
	}
	if err := s.defaults(); err != nil {
		return err
	}
	file, fromFile := loadFile(dst, s, cl.file, o)
	fromEnv, ignored := applyEnv(s, &o)
	misused := slices.Concat(cl.problems, s.olderFlags(cl.values), cl.apply())
	problems := slices.Concat(fromFile, fromEnv, misused)
	unread := len(problems) > 0
	for _, p := range validate(dst) {
		if _, unparsed := errors.AsType[toml.ParseError](errors.Join(fromFile...)); unparsed {
			break // the contents of the file are unknown
		}
		if missing := (Missing{}); !unread || !errors.As(p, &missing) {
			problems = append(problems, file.locate(p))
		}
	}
	if cl.check || len(problems) > 0 && !unread {
		for _, p := range walk(dst, examineOne) {
			problems = append(problems, file.locate(p))
		}
	}
	if len(problems) > 0 {
		return &Error{Problems: problems, Misused: len(misused) > 0, Unread: unread}
	}
	if cl.check {
		notes := s.renameNotes()
		walk(dst, func(v any) error {
			if a, ok := v.(Adviser); ok {
				notes = append(notes, a.Advise()...)
			}
			return nil
		})
		return answered(writeEffective(o.out(), s, o.Program, ignored, notes))
	}
	for _, name := range ignored {
		if o.Ignored != nil {
			o.Ignored(name)
		}
	}
	for _, f := range s.fields {
		if f.variable != "" && o.FromVariable != nil {
			o.FromVariable(f.path(), f.variable)
		}
	}
	for _, r := range s.renames {
		if o.Renamed != nil {
			o.Renamed(r.given, r.name)
		}
	}
	return nil
}

// Defaults sets every field that has a default in the struct that dst points to.
func Defaults(dst any) error {
	s, err := inspect(dst)
	if err != nil {
		return err
	}
	return s.defaults()
}

// Check runs every Validate of a struct that was not filled by Load, and returns nil or an *Error.
func Check(dst any) error {
	if problems := validate(dst); len(problems) > 0 {
		return &Error{Problems: problems}
	}
	return nil
}

func answered(err error) error {
	if err != nil {
		return err
	}
	return ErrAnswered
}

func (o Options) out() io.Writer {
	if o.Out == nil {
		return os.Stdout
	}
	return o.Out
}

func (s *schema) defaults() error {
	for _, f := range s.fields {
		if !f.hasDef {
			continue
		}
		if err := f.setFromText(f.def); err != nil {
			return fmt.Errorf("config: default %q of %s: %w", f.def, f.path(), err)
		}
	}
	return nil
}

func loadFile(dst any, s *schema, name string, o Options) (*fileReader, []error) {
	name = cmp.Or(name, lookupEnv(o.Env, "CGN_CONFIG"))
	r := &fileReader{name: name, schema: s}
	if name == "" {
		return r, nil
	}
	read := o.ReadFile
	if read == nil {
		read = rights.ReadFile
	}
	doc, err := read(name)
	if err != nil {
		return r, []error{&Problem{Where: "--" + fileFlag, Reason: err.Error() +
			"; name a TOML file with --" + fileFlag + " or " + envPrefix + "CONFIG"}}
	}
	if at := invalidUTF8(doc); at >= 0 {
		return r, []error{&Problem{Where: name, Reason: fmt.Sprintf("not UTF-8 at byte %d; save it as UTF-8 text", at)}}
	}
	return r, r.read(string(doc), reflect.ValueOf(dst).Elem())
}

// invalidUTF8 returns the offset of the first invalid UTF-8 in doc; -1 if there is none. A byte
// order mark of UTF-16 is invalid UTF-8.
func invalidUTF8(doc []byte) int {
	for at := 0; at < len(doc); {
		r, size := utf8.DecodeRune(doc[at:])
		if r == utf8.RuneError && size == 1 {
			return at
		}
		at += size
	}
	return -1
}

// problem returns the problem that text, as its author wrote it, is no valid value of f.
func (f *field) problem(where, text string, err error) *Problem {
	return &Problem{Where: where, Field: f.path(), Value: text, Reason: err.Error()}
}

// validate calls Validate on dst and on every struct inside it.
func validate(dst any) []error { return walk(dst, validateOne) }

func validateOne(v any) error {
	if checker, ok := v.(Validator); ok {
		return checker.Validate()
	}
	return nil
}

func examineOne(v any) error {
	if examiner, ok := v.(Examiner); ok {
		return examiner.Examine()
	}
	return nil
}

// walk calls ask for dst and every struct inside it, and collects their problems.
func walk(dst any, ask func(v any) error) []error {
	w := walker{ask: ask}
	w.value(reflect.ValueOf(dst).Elem(), "")
	return w.problems
}

type walker struct {
	ask      func(v any) error
	problems []error
}

func (w *walker) value(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Struct:
		w.table(v, path)
	case reflect.Slice:
		for i := range v.Len() {
			w.value(v.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Map:
		w.tables(v, path)
	}
}

func (w *walker) table(v reflect.Value, path string) {
	for _, err := range flatten(w.ask(v.Addr().Interface())) {
		if path != "" {
			err = In(err, path)
		}
		p := &Problem{Where: path, Reason: err.Error(), cause: err}
		if path != "" && strings.HasPrefix(p.Reason, path+".") {
			p.Where = "" // the reason names the field in full
		}
		w.problems = append(w.problems, p)
	}
	lists := map[string]bool{}
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		lists[sf.Tag.Get("toml")] = lists[sf.Tag.Get("toml")] || sf.Type.Kind() == reflect.Slice && v.Field(i).Len() > 0
	}
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		switch key := sf.Tag.Get("toml"); {
		case !sf.IsExported() || key == "" || key == "-":
		case key == inline:
			w.value(v.Field(i), path)
		case isTable(sf.Type) && lists[key]: // the file has [[key]], not [key]
		default:
			w.value(v.Field(i), join(path, key))
		}
	}
}

func (w *walker) tables(m reflect.Value, path string) {
	keys := make([]string, 0, m.Len())
	for _, k := range m.MapKeys() {
		keys = append(keys, k.String())
	}
	slices.Sort(keys)
	for _, k := range keys {
		e := reflect.New(m.Type().Elem()).Elem()
		e.Set(m.MapIndex(reflect.ValueOf(k)))
		w.value(e, join(path, k))
	}
}

// flatten splits an error of errors.Join.
func flatten(err error) []error {
	if err == nil {
		return nil
	}
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range j.Unwrap() {
			all = append(all, flatten(e)...)
		}
		return all
	}
	return []error{err}
}
