package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// rename is an older name that the user has written, and the name of today.
type rename struct{ given, name string }

// renamed notes an older name, once.
func (s *schema) renamed(given, name string) {
	if r := (rename{given, name}); !slices.Contains(s.renames, r) {
		s.renames = append(s.renames, r)
	}
}

// renameNotes says for --check-config what is given by an older name.
func (s *schema) renameNotes() (notes []string) {
	for _, r := range s.renames {
		notes = append(notes, r.given+" is an older name; write "+r.name)
	}
	return notes
}

// movedFrom gives the section at index sec, and what is in it from the field at index first on, its
// older path: the tag was of the section.
func (s *schema) movedFrom(sec, first int, was string) {
	path := s.sections[sec].path
	for i := range s.sections[sec:] {
		inner := &s.sections[sec+i]
		inner.was = was + strings.TrimPrefix(inner.path, path)
	}
	for _, f := range s.fields[first:] {
		if f.was == "" {
			f.was = was + strings.TrimPrefix(f.path(), path)
		}
	}
}

// oldEnv is the variable of the field's older name; "" if it has none.
func (f *field) oldEnv() string {
	if f.was == "" {
		return ""
	}
	return envName(f.was)
}

// oldFlag is the flag of the field's older name; "" if its flag is not made of its name.
func (f *field) oldFlag() string {
	if f.flag != f.path() {
		return ""
	}
	return f.was
}

// olderFlags notes flags of older names. A setting that has both its flags is a problem.
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

// renameAll moves what a document has under older names to the names of today.
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

// put sets the value of was at is. Tables under both names become one, unless a key is in both.
func (r *fileReader) put(tree map[string]any, was, is string, value any) {
	parts := strings.Split(is, ".")
	last := parts[len(parts)-1]
	table := tableAt(tree, parts[:len(parts)-1])
	if table == nil {
		return // what is no table is a problem of its own
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

// takeOut removes the value at path, and tables that are empty without it.
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

// tableAt returns the table at path, made if it is not there; nil where something else is.
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

// alias gives what stands under was the same lines under is.
func (x lineIndex) alias(was, is string) {
	for path, line := range maps.Clone(x) {
		if rest, ok := strings.CutPrefix(path, was); ok && (rest == "" || strings.ContainsAny(rest[:1], ".[")) {
			x[is+rest] = line
		}
	}
}

// at is the place of the key at path: "router.toml:12".
func (r *fileReader) at(path string) string {
	if n := r.lines.of(path); n > 0 {
		return fmt.Sprintf("%s:%d", r.name, n)
	}
	return r.name
}
