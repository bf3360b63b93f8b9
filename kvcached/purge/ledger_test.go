package purge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func open(t testing.TB, o Options) *Ledger {
	t.Helper()
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestUnfinished checks that the next start carries out the purges that a crash cut off. Purges
// that were carried out without the SSD tier are carried out again as well.
func TestUnfinished(t *testing.T) {
	o, swept := Options{Dir: t.TempDir()}, 0
	s := &shelf{swept: func(match func(string, []byte) bool) {
		if match(space("a"), nil) && match(space("b"), nil) {
			swept++
		}
	}}
	o.Store = s
	l := open(t, o)
	for _, m := range []string{"a", "b"} {
		if _, err := l.Purge(t.Context(), Selector{Model: m}); err != nil {
			t.Fatal(err)
		}
	}
	start := func(o Options, want int) {
		t.Helper()
		swept = 0
		if l := open(t, o); swept != want || l.Stamp() != l.List().Stamp() {
			t.Errorf("all carried out %d times, want %d", swept, want)
		}
	}
	start(o, 0)
	s.err = errors.New("a crash")
	if done, err := open(t, o).Purge(t.Context(), Selector{Model: "c"}); err != nil || done[0].Err == nil {
		t.Fatal(done, err)
	}
	if _, err := Open(t.Context(), o); !errors.Is(err, s.err) {
		t.Error(err)
	}
	s.err = nil
	start(o, 1)
	start(o, 0)
	partial := o
	partial.Partial = true
	if _, err := open(t, partial).Purge(t.Context(), Selector{Model: "c"}); err != nil {
		t.Fatal(err)
	}
	start(partial, 1)
	start(o, 1)
	start(o, 0)
}

// TestTake calls Take with lists in any order. Each purge is carried out once, and again after a
// failure.
func TestTake(t *testing.T) {
	s, swept := &shelf{}, ""
	s.swept = func(match func(string, []byte) bool) {
		for _, m := range []string{"a", "b", "c"} {
			if match(space(m), nil) {
				swept += m
			}
		}
		swept += " "
	}
	l := open(t, Options{Store: s})
	take := func(list *List, err error, want string) {
		t.Helper()
		swept = ""
		if _, got := l.Take(t.Context(), list); !errors.Is(got, err) || strings.TrimSpace(swept) != want {
			t.Errorf("%v, %q swept, want %q", got, swept, want)
		}
	}
	one := with(t, &List{}, "a")
	two := with(t, one, "b")
	take(two, nil, "ab")
	take(one, nil, "")
	take(two, nil, "")
	three := with(t, two, "c")
	s.err = errors.New("no disk")
	take(three, s.err, "c")
	if l.Revision() != 2 || !l.Bars(two.Stamp(), space("c"), nil) {
		t.Error("a purge that failed is confirmed, or its blocks are taken in")
	}
	s.err = nil
	take(three, nil, "c")
	take(&List{History: 5}, ErrHistory, "")
	swept = ""
	other := merge(t, l.List(), with(t, &List{History: 5}, "a"))
	if _, err := l.Replace(t.Context(), l.List(), other); err != nil || strings.TrimSpace(swept) != "a" {
		t.Errorf("%v, %q swept", err, swept)
	}
	if _, err := l.Replace(t.Context(), three, &List{History: 6}); !errors.Is(err, ErrHistory) {
		t.Error(err)
	}
}

// TestDamage checks that a damaged file stops the start.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir, Store: &shelf{}})
	if _, err := l.Purge(t.Context(), Selector{Everything: true}); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, File)
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", string(text[:len(text)/2]), strings.ReplaceAll(string(text), "everything", "x")} {
		if err := os.WriteFile(name, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(t.Context(), Options{Dir: dir, Store: &shelf{}}); err == nil ||
			!strings.Contains(err.Error(), File) {
			t.Error(err)
		}
	}
	l = open(t, Options{Dir: t.TempDir(), Store: &shelf{}})
	l.path = filepath.Join(dir, "no such", File)
	if done, err := l.Purge(t.Context(), Selector{Everything: true}); err != nil || done[0].Err == nil {
		t.Error(done, err)
	}
}

// TestExamine checks that Examine refuses the files that Open refuses, and no others.
func TestExamine(t *testing.T) {
	for _, c := range []struct {
		text string
		good bool
	}{
		{`{"history":1,"revision":0,"purges":[]}`, true},
		{`{"history":1,"revision":0,"purges":[],"unfinished":true}`, true},
		{"", false}, {`{"history":1`, false}, {`{"history":1,"other":2}`, false},
		{`{"history":1,"revision":0,"purges":[{}]}`, false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, File)
		if err := Examine(path); err != nil {
			t.Error("no file:", err)
		}
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Options{Dir: dir, Store: &shelf{}})
		if examined := Examine(path); (examined == nil) != c.good || (err == nil) != c.good {
			t.Errorf("%s: Examine %v, Open %v", c.text, examined, err)
		}
	}
}
