package config

import (
	"reflect"
	"strconv"
	"strings"
)

// commandLine holds the parsed arguments.
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

// plain makes the spellings of a flag name equal: '.', '_' and '-' are the same.
var plain = strings.NewReplacer(".", "-", "_", "-").Replace

// parseArgs parses --name value, --name=value and, for booleans, --name. A single dash works too,
// as in Go's own flags.
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
	args, instead := o.Args, "" // value of a boolean flag as a separate argument
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
			if s.isGone(plain(name), plain) {
				cl.fail("--"+name, goneReason)
			} else {
				cl.fail("--"+name, "unknown flag"+s.meantFlag(name, names))
			}
			if !hasText && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // the argument that was meant as its value
			}
			continue
		}
		if !hasText {
			switch {
			case f != nil && f.value.Kind() == reflect.Bool:
				text = "true"
				instead = "; a boolean is written --" + name + "=true or --" + name + "=false"
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

// meantFlag suggests the flag for an unknown one. The unknown one may be a setting's full name.
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
	if meant := MeantFlags(name, flags); len(meant) > 0 {
		return "; did you mean --" + strings.Join(meant, " or --") + "?"
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

// apply sets the fields. The first flag of a list replaces the list from the file or the
// environment, and further flags add to the list. A flag has several elements with commas between
// them, as in a variable. If elements may hold commas, each flag has one element.
func (cl *commandLine) apply() []error {
	var problems []error
	begun := map[*field]bool{}
	for _, v := range cl.values {
		var err error
		v.field.given, v.field.variable = true, ""
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

// addTo sets the field to list plus the elements of a flag.
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
