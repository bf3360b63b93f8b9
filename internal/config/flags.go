package config

import (
	"reflect"
	"strconv"
	"strings"
)

// commandLine is what the arguments ask for.
type commandLine struct {
	file                 string
	help, version, check bool
	values               []flagValue
	problems             []error
}

type flagValue struct {
	name  string
	text  string
	field *field
}

// plain folds the spellings of a flag name into one: '.', '_' and '-' are the same.
var plain = strings.NewReplacer(".", "-", "_", "-").Replace

// parseArgs reads --name value, --name=value and, for booleans, --name; a
// single dash does too, as in Go's own flags.
func parseArgs(s *schema, o Options) *commandLine {
	cl := &commandLine{}
	byName, names := map[string]*field{}, []string{"help", "version", "check-config", fileFlag}
	for _, f := range s.fields {
		if f.flag != "" {
			byName[plain(f.flag)] = f
			names = append(names, f.flag)
		}
		if old := f.oldFlag(); old != "" {
			byName[plain(old)] = f
		}
	}
	args, instead := o.Args, "" // of a boolean whose value stands apart
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		if len(arg) < 2 || arg[0] != '-' || arg == "--" {
			cl.fail(arg, "not a flag; this program takes flags only (see --help)"+instead)
			continue
		}
		instead = ""
		name, text, hasText := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		f := byName[plain(name)]
		if cl.builtin(name) {
			continue
		}
		if f == nil && name != fileFlag {
			cl.fail("--"+name, "unknown flag"+s.meantFlag(name, names))
			if !hasText && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // what was meant as its value
			}
			continue
		}
		if !hasText {
			switch {
			case f != nil && f.value.Kind() == reflect.Bool:
				text = "true"
				if len(args) > 0 && (args[0] == "true" || args[0] == "false") {
					instead = "; a boolean is written --" + name + "=" + args[0]
				}
			case len(args) == 0:
				cl.fail("--"+name, "needs a value")
				continue
			default:
				text, args = args[0], args[1:]
			}
		}
		cl.take(name, text, f)
	}
	return cl
}

// meantFlag says what to write instead of a flag that there is not: a setting may have been called
// by its full name.
func (s *schema) meantFlag(name string, flags []string) string {
	for _, f := range s.fields {
		switch {
		case plain(f.path()) != plain(name):
		case f.flag == "":
			return "; " + f.path() + " has none: set it in the file (--" + fileFlag + "), as " + f.key + " in [" +
				f.section + "]"
		default:
			return "; the flag of " + f.path() + " is --" + f.flag
		}
	}
	if near := Nearest(name, flags); near != "" {
		return "; did you mean --" + near + "?"
	}
	return " (see --help)"
}

func (cl *commandLine) builtin(name string) bool {
	switch plain(name) {
	case "h", "help":
		cl.help = true
	case "version":
		cl.version = true
	case "check-config":
		cl.check = true
	default:
		return false
	}
	return true
}

func (cl *commandLine) take(name, text string, f *field) {
	if f == nil {
		cl.file = text
		return
	}
	cl.values = append(cl.values, flagValue{"--" + name, text, f})
}

func (cl *commandLine) fail(where, reason string) {
	cl.problems = append(cl.problems, &Problem{Where: where, Reason: reason})
}

// apply sets the fields. The first flag of a list replaces what the file or the
// environment put there, the next ones add to it; each has one element, or as a
// variable several with commas between where elements hold none.
func (cl *commandLine) apply() []error {
	var problems []error
	begun := map[*field]bool{}
	for _, v := range cl.values {
		var err error
		v.field.given = true
		if v.field.isList() {
			list := reflect.MakeSlice(v.field.value.Type(), 0, 1)
			if begun[v.field] {
				list = v.field.value
			}
			err = v.field.addTo(list, v.text)
			begun[v.field] = true
		} else {
			err = v.field.setFromText(v.text)
		}
		if err != nil {
			problems = append(problems, v.field.problem(v.name, strconv.Quote(v.text), err))
		}
	}
	return problems
}

// addTo sets the field to list plus what a flag has.
func (f *field) addTo(list reflect.Value, text string) error {
	words := []string{text}
	if !f.spaced {
		var err error
		if words, err = f.split(text); err != nil {
			return err
		}
	}
	for _, w := range words {
		if err := appendText(&list, strings.TrimSpace(w)); err != nil {
			return err
		}
	}
	if err := f.allowed(list); err != nil {
		return err
	}
	f.value.Set(list)
	return nil
}
