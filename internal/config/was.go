package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rename is an older name in the user's configuration, and the present name.
type rename struct{ given, name string }

// renamed records an older name once.
func (s *schema) renamed(given, name string) {
	if r := (rename{given, name}); !slices.Contains(s.renames, r) {
		s.renames = append(s.renames, r)
	}
}

// renameNotes returns notes for --check-config about settings that were given by an older name.
func (s *schema) renameNotes() (notes []string) {
	for _, r := range s.renames {
		notes = append(notes, r.given+" is an older name; write "+r.name)
	}
	return notes
}

// movedFrom sets the older path of the section at index sec, and of its fields from index first on,
// because the section has the tag was.
func (s *schema) movedFrom(sec, first int, was string) {
	path := s.sections[sec].path
	for i := range s.sections[sec:] {
		inner := &s.sections[sec+i]
		inner.was = was + strings.TrimPrefix(inner.path, path)
	}
	for _, f := range s.fields[first:] {
		f.was = cmp.Or(f.was, was+strings.TrimPrefix(f.path(), path))
	}
}

// oldEnv returns the variable of the field's older name; "" if it has none.
func (f *field) oldEnv() string {
	if f.was == "" {
		return ""
	}
	return envName(f.was)
}

// oldFlag returns the flag of the field's older name; "" if its flag does not follow from its name.
func (f *field) oldFlag() string {
	if f.flag != f.path() {
		return ""
	}
	return f.was
}

// isGone says whether a setting of the name was once: a path, or what named makes of one.
func (s *schema) isGone(name string, named func(path string) string) bool {
	return slices.ContainsFunc(s.gone, func(path string) bool { return named(path) == name })
}

// goneReason is the problem of a setting that there was once.
const goneReason = "is no setting any more: the program has one value for it; remove it"

// olderFlags records flags of older names. A setting given by both of its flags is a problem.
func (s *schema) olderFlags(values []flagValue) (problems []error) {
	newer := map[*field]bool{}
	for _, v := range values {
		newer[v.field] = newer[v.field] || !v.older()
	}
	for _, v := range values {
		switch name := "--" + v.field.flag; {
		case !v.older():
		case newer[v.field]:
			problems = append(problems, &Problem{Where: v.name, Reason: givenTwice(name)})
		default:
			s.renamed(v.name, name)
		}
	}
	return problems
}

func (v flagValue) older() bool {
	old := v.field.oldFlag()
	return old != "" && plain(v.name) == "--"+plain(old)
}

func givenTwice(name string) string {
	return "is the older name of " + name + ", which is given too; give one of them"
}

// renameAll moves values from older names to present names in a document.
func (r *fileReader) renameAll(tree map[string]any) {
	for _, sec := range r.schema.sections {
		r.rename(tree, sec.was, sec.path)
	}
	for _, f := range r.schema.fields {
		r.rename(tree, f.was, f.path())
	}
}

func (r *fileReader) rename(tree map[string]any, was, is string) {
	if was == "" {
		return
	}
	value, ok := takeOut(tree, strings.Split(was, "."))
	if !ok {
		return
	}
	r.put(tree, was, is, value)
	r.schema.renamed(r.at(was)+": "+was, is)
}

// put moves value from was to is. Tables under both names are merged, unless a key is in both.
func (r *fileReader) put(tree map[string]any, was, is string, value any) {
	parts := strings.Split(is, ".")
	last := parts[len(parts)-1]
	table := tableAt(tree, parts[:len(parts)-1])
	if table == nil {
		return // a value that is no table is reported elsewhere
	}
	there, given := table[last]
	old, oldTable := value.(map[string]any)
	_, newTable := there.(map[string]any)
	switch {
	case !given:
		table[last] = value
		r.lines.alias(was, is)
	case oldTable && newTable:
		for _, key := range slices.Sorted(maps.Keys(old)) {
			r.put(tree, join(was, key), join(is, key), old[key])
		}
	default:
		r.fail(&Problem{Field: was, Reason: givenTwice(is)}, was)
	}
}

// takeOut removes the value at path, and tables that become empty.
func takeOut(tree map[string]any, path []string) (value any, ok bool) {
	if len(path) == 1 {
		value, ok = tree[path[0]]
		delete(tree, path[0])
		return value, ok
	}
	inner, _ := tree[path[0]].(map[string]any)
	if value, ok = takeOut(inner, path[1:]); ok && len(inner) == 0 {
		delete(tree, path[0])
	}
	return value, ok
}

// tableAt returns the table at path, and makes it if it is missing; nil if there is another value.
func tableAt(tree map[string]any, path []string) map[string]any {
	for _, key := range path {
		if _, ok := tree[key]; !ok {
			tree[key] = map[string]any{}
		}
		inner, ok := tree[key].(map[string]any)
		if !ok {
			return nil
		}
		tree = inner
	}
	return tree
}

// alias makes the lines of keys under was also those of keys under is.
func (x lineIndex) alias(was, is string) {
	for path, line := range maps.Clone(x) {
		if rest, ok := strings.CutPrefix(path, was); ok && (rest == "" || strings.ContainsAny(rest[:1], ".[")) {
			x[is+rest] = line
		}
	}
}

// at returns where the key at path stands: "router.toml:12".
func (r *fileReader) at(path string) string {
	if n := r.lines.of(path); n > 0 {
		return fmt.Sprintf("%s:%d", r.name, n)
	}
	return r.name
}
