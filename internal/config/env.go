package config

import (
	"regexp"
	"strconv"
	"strings"
)

const envPrefix = "CGN_"

func lookupEnv(env []string, name string) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(e, name+"="); ok {
			return v
		}
	}
	return ""
}

// applyEnv sets fields from CGN_* variables. A variable that sets no field is a problem in two
// cases, unless it is another program's setting. First, it is under a section of this struct.
// Second, it is similar to a variable of this struct, or equals one without its section. ignored
// lists the other variables, except those in sections of other programs.
func applyEnv(s *schema, o *Options) (problems []error, ignored []string) {
	byName, names := s.envNames()
	given := map[*field]string{}
	for _, e := range o.Env {
		name, text, _ := strings.Cut(e, "=")
		f, ok := byName[name]
		switch {
		case ok && given[f] != "" && given[f] != name:
			problems = append(problems,
				&Problem{Where: name, Reason: "is the same setting as " + given[f] + "; give one of them"})
		case ok:
			given[f], f.given, f.variable = name, true, name
			if name == f.oldEnv() {
				s.renamed(name, f.env())
			}
			if err := f.setFromText(text); err != nil {
				problems = append(problems, f.problem(name, strconv.Quote(text), err))
			}
		case !strings.HasPrefix(name, envPrefix) || name == envPrefix+"CONFIG" || serviceLink.MatchString(name):
		default:
			problem, ignore := s.unknown(o.Program, name, names)
			if problem != nil {
				problems = append(problems, problem)
			}
			if ignore {
				ignored = append(ignored, name)
			}
		}
	}
	return problems, ignored
}

// unknown decides whether a variable that sets no field is a problem, ignored, or another
// program's.
func (s *schema) unknown(program, name string, names []string) (problem error, ignored bool) {
	setting, section := foreign(program, name)
	switch owns := s.ownsEnv(name); {
	case setting:
		return nil, owns // ignored if it may have been meant for this program
	case s.isGone(name, envName):
		return &Problem{Where: name, Reason: goneReason}, false
	case owns:
		return &Problem{Where: name, Reason: "unknown setting" + didYouMean(name, names)}, false
	case section:
		return nil, false
	case s.meant(name, names) != "":
		return &Problem{Where: name, Reason: "unknown setting; did you mean " + s.meant(name, names) + "?"}, false
	}
	return nil, true
}

// envNames returns the variables that set fields. names includes CGN_CONFIG, and no older names.
func (s *schema) envNames() (byName map[string]*field, names []string) {
	byName, names = map[string]*field{}, []string{envPrefix + "CONFIG"}
	for _, f := range s.fields {
		if !textual(f.value.Type()) {
			continue
		}
		for _, name := range f.envs() {
			byName[name] = f
			names = append(names, name)
		}
		if old := f.oldEnv(); old != "" {
			byName[old] = f
		}
	}
	return byName, names
}

// meant returns what name may have been meant for: all settings whose variable without section it
// is, or else the nearest variable.
func (s *schema) meant(name string, names []string) string {
	var all []string
	for _, f := range s.fields {
		if textual(f.value.Type()) && f.flag != "" &&
			name == envPrefix+strings.ToUpper(strings.ReplaceAll(plain(f.flag), "-", "_")) {
			return f.env()
		}
		path := strings.ToUpper(join(f.section, f.key))
		for _, rest, ok := strings.Cut(path, "."); ok; _, rest, ok = strings.Cut(rest, ".") {
			if textual(f.value.Type()) && envPrefix+strings.ReplaceAll(rest, ".", "_") == name {
				all = append(all, f.env())
			}
		}
	}
	if all != nil {
		return strings.Join(all, " or ")
	}
	return nearestEnv(name, names)
}

// nearestEnv is Nearest without the prefix that all names share.
func nearestEnv(name string, names []string) string {
	short := make([]string, len(names))
	for i, n := range names {
		short[i] = strings.TrimPrefix(n, envPrefix)
	}
	near := Nearest(strings.TrimPrefix(name, envPrefix), short)
	if near == "" {
		return ""
	}
	return envPrefix + near
}

// serviceLink matches the variables that Kubernetes sets in every container for a service:
// CGN_ROUTER_SERVICE_HOST, CGN_ROUTER_PORT_8080_TCP and so on.
var serviceLink = regexp.MustCompile(`_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_[0-9]+_(TCP|UDP|SCTP).*)?)$`)

func (s *schema) ownsEnv(name string) bool {
	for _, sec := range s.sections {
		for _, prefix := range sec.envs() {
			if strings.HasPrefix(name, prefix) {
				return true
			}
		}
	}
	return false
}
