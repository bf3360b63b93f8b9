// Package residue finds values that recycling has left in a struct. The package is for tests: Mark
// fills every field, the test recycles, and Left returns the fields that still have a value. A
// forgotten field would carry one client's data to another.
package residue

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unsafe"
)

// Mark sets every field of the struct that v points to, exported or not, and of the structs and
// arrays in it, to a value that is not zero. Mark also fills a slice's memory beyond its length. An
// interface gets the first of samples that fits. An interface that no sample fits stays unchanged,
// unless it is an error. Fields whose paths (such as life.mu) are in skip, or below one in skip,
// stay unchanged. Locks stay unchanged too.
func Mark(v any, skip []string, samples ...any) {
	m := marker{skip: skip, samples: samples}
	m.mark(reflect.ValueOf(v).Elem(), "")
}

// Left returns the paths of the fields that are not zero. A slice without length is zero if the
// memory beyond its length has no pointer. Left ignores fields in skip.
func Left(v any, skip ...string) (paths []string) {
	m := marker{skip: skip}
	m.left(reflect.ValueOf(v).Elem(), "", &paths)
	return paths
}

// Fields counts the fields of the struct type of v, and of the struct types in it. Fields returns
// those with more than most, by path.
func Fields(v any, most int) (over []string) {
	seen := map[reflect.Type]bool{}
	countFields(reflect.TypeOf(v), most, seen, &over)
	return over
}

func countFields(t reflect.Type, most int, seen map[reflect.Type]bool, over *[]string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array:
		countFields(t.Elem(), most, seen, over)
		return
	case reflect.Struct:
	default:
		return
	}
	if seen[t] || !strings.Contains(t.PkgPath(), "cognitora/") || strings.Contains(t.PkgPath(), "/proto/") {
		return
	}
	seen[t] = true
	if n := t.NumField(); n > most {
		*over = append(*over, fmt.Sprintf("%s has %d fields", t, n))
	}
	for i := range t.NumField() {
		countFields(t.Field(i).Type, most, seen, over)
	}
}

type marker struct {
	skip    []string
	samples []any
}

// open returns f as a value that can be set, exported or not.
func open(f reflect.Value) reflect.Value {
	return reflect.NewAt(f.Type(), unsafe.Pointer(f.UnsafeAddr())).Elem()
}

// passed tells whether the value at path is skipped.
func (m *marker) passed(path string, t reflect.Type) bool {
	if t.PkgPath() == "sync" || t.PkgPath() == "sync/atomic" && t.Kind() == reflect.Struct {
		return true
	}
	return slices.ContainsFunc(m.skip, func(s string) bool { return path == s || strings.HasPrefix(path, s+".") })
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func (m *marker) mark(v reflect.Value, path string) {
	t := v.Type()
	if m.passed(path, t) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			m.mark(open(v.Field(i)), join(path, t.Field(i).Name))
		}
	case reflect.Array:
		for i := range v.Len() {
			m.mark(open(v.Index(i)), fmt.Sprintf("%s[%d]", path, i))
		}
	case reflect.Slice:
		s := reflect.MakeSlice(t, 2, 2)
		for i := range 2 {
			m.mark(s.Index(i), path)
		}
		v.Set(s.Slice(0, 1))
	case reflect.Interface:
		m.markInterface(v)
	default:
		markSimple(v)
	}
}

func (m *marker) markInterface(v reflect.Value) {
	for _, s := range append(m.samples, errors.New("mark")) {
		if reflect.TypeOf(s).Implements(v.Type()) {
			v.Set(reflect.ValueOf(s))
			return
		}
	}
}

// markSimple marks a value without parts.
func markSimple(v reflect.Value) {
	t := v.Type()
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("mark")
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
	case reflect.Func:
		v.Set(reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
			out := make([]reflect.Value, t.NumOut())
			for i := range out {
				out[i] = reflect.Zero(t.Out(i))
			}
			return out
		}))
	case reflect.Map:
		v.Set(reflect.MakeMap(t))
		v.SetMapIndex(reflect.Zero(t.Key()), reflect.Zero(t.Elem()))
	case reflect.Chan:
		v.Set(reflect.MakeChan(t, 1))
	case reflect.UnsafePointer:
	default:
		v.Set(reflect.ValueOf(1).Convert(t))
	}
}

func (m *marker) left(v reflect.Value, path string, paths *[]string) {
	t := v.Type()
	if m.passed(path, t) {
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			m.left(open(v.Field(i)), join(path, t.Field(i).Name), paths)
		}
	case reflect.Array:
		for i := range v.Len() {
			m.left(open(v.Index(i)), fmt.Sprintf("%s[%d]", path, i), paths)
		}
	case reflect.Slice:
		if v.Len() > 0 || hasPointers(t.Elem()) && !zero(v.Slice(0, v.Cap())) {
			*paths = append(*paths, path)
		}
	default:
		if !v.IsZero() {
			*paths = append(*paths, path)
		}
	}
}

func zero(s reflect.Value) bool {
	for i := range s.Len() {
		if !s.Index(i).IsZero() {
			return false
		}
	}
	return true
}

// hasPointers tells whether a value of t may keep other memory alive.
func hasPointers(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if hasPointers(t.Field(i).Type) {
				return true
			}
		}
		return false
	case reflect.Array:
		return hasPointers(t.Elem())
	}
	return t.Kind() >= reflect.Chan || t.Kind() == reflect.String
}
