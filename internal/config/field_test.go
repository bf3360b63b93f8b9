package config

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"testing"
)

// TestFieldError: settings have the names of the section or list that the user has. Text in values
// is not changed.
func TestFieldError(t *testing.T) {
	err := error(Wrong("engine", "binary", "%q: %w (engine.x); set %s, or %s",
		"/opt engine.url (--x)", fs.ErrNotExist, Mention{"url", "--engine"}, Mention{Key: "model"}))
	const text = `binary: "/opt engine.url (--x)": file does not exist (engine.x); set `
	for path, want := range map[string]string{
		"engine":       "engine." + text + "engine.url (--engine), or engine.model",
		"engine[1]":    "engine[1]." + text + "engine[1].url, or engine[1].model",
		"pool.engine":  "pool.engine." + text + "pool.engine.url (--engine), or pool.engine.model",
		"pool[12].one": "pool[12].one." + text + "pool[12].one.url, or pool[12].one.model",
	} {
		for _, e := range []error{err, Missing{err}} {
			got := In(e, path)
			var field *FieldError
			if got.Error() != want || !errors.Is(got, fs.ErrNotExist) || !errors.As(got, &field) ||
				errors.As(got, &Missing{}) != errors.As(e, &Missing{}) {
				t.Errorf("in %s: %v, want %s", path, got, want)
			}
		}
	}
	if other := fmt.Errorf("start: %w", err); In(other, "engine[1]") != other {
		t.Error("what is no FieldError itself was changed")
	}
}

// TestLinesOfNestedLists: tables and lists inside lists belong to the last element of each list.
func TestLinesOfNestedLists(t *testing.T) {
	const doc = `[a]
x = 1
[[a.b]]
x = 1
[a.b.c]
x = 1
[[a.b.d]]
x = 1
[[a.b.d]]
x = 1
[a.b.d.e]
x = 1
[[a.b]]
[[a.b.d]]
x = 1
[a.b.d.e]
x = 1
[a.bc]
x = 1
`
	want := map[string]int{
		"a": 1, "a.x": 2, "a.b[0]": 3, "a.b[0].x": 4, "a.b[0].c": 5, "a.b[0].c.x": 6, "a.b[0].d[0]": 7,
		"a.b[0].d[0].x": 8, "a.b[0].d[1]": 9, "a.b[0].d[1].x": 10,
		"a.b[0].d[1].e": 11, "a.b[0].d[1].e.x": 12, "a.b[1]": 13, "a.b[1].d[0]": 14, "a.b[1].d[0].x": 15,
		"a.b[1].d[0].e": 16, "a.b[1].d[0].e.x": 17, "a.bc": 18, "a.bc.x": 19,
	}
	if got := indexLines(doc); !maps.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}
