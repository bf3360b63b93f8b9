package purge

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func open(t *testing.T, dir string, s Store) *Ledger {
	t.Helper()
	l, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if s != nil {
		if err := l.Attach(s); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// TestRecordsOnSSD: records that are older than a purge stay dead over starts, later ones live. A
// purge that a crash has cut off, or whose host had no SSD tier, is of all records there are.
func TestRecordsOnSSD(t *testing.T) {
	dir, s := t.TempDir(), &shelf{seq: 100, blocks: 3}
	l := open(t, dir, s)
	if done, err := l.Purge(t.Context(), Selector{Model: "m"}); err != nil || done[0].Blocks != 3 {
		t.Fatal(done, err)
	}
	dead := func(l *Ledger, seq uint64, namespace, key string, want bool) {
		t.Helper()
		if got := l.Dead(seq, namespace, []byte(key)); got != want {
			t.Errorf("record %d of %s %s: %v", seq, namespace, key, got)
		}
	}
	check := func(l *Ledger, until uint64) {
		t.Helper()
		dead(l, until-1, space("m"), "", true)
		dead(l, until, space("m"), "", false)
		dead(l, until-1, space("n"), "", false)
		dead(l, until-1, resp, "m@1@0@4e11", true)
		dead(l, until, resp, "m@1@0@4e11", false)
		dead(l, until-1, resp, "n@1@0@4e11", false)
	}
	check(l, 100)
	check(open(t, dir, nil), 100)
	s.seq = 40 // the tier was emptied
	check(open(t, dir, s), 40)

	s.seq, s.err = 200, errors.New("a crash")
	l = open(t, dir, s)
	if done, err := l.Purge(t.Context(), Selector{Model: "m"}); err != nil || done[0].Err == nil {
		t.Fatal(done, err)
	}
	dead(l, 1<<60, space("m"), "", true)
	l = open(t, dir, nil)
	dead(l, 1<<60, space("m"), "", true)
	s.seq, s.err = 0, nil
	l = open(t, dir, s) // without SSD
	if l.Stamp() != (Stamp{0, 2}) {
		t.Error(l.Stamp())
	}
	s.seq = 300
	l = open(t, dir, s)
	check(l, 300)
	check(open(t, dir, s), 300)
}

// TestTake: lists are carried out once, in any order, and a failure is made good.
func TestTake(t *testing.T) {
	s, swept := &shelf{seq: 5}, ""
	s.swept = func(match func(string, []byte) bool) {
		for _, m := range []string{"a", "b", "c"} {
			if match(space(m), nil) {
				swept += m
			}
		}
		swept += " "
	}
	l := open(t, "", s)
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
	if l.Stamp().Revision != 2 || !l.Bars(Stamp{0, 2}, space("c"), nil) {
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

// TestDamage: a start without the purges would serve what was purged.
func TestDamage(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, &shelf{})
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
		if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), File) {
			t.Error(err)
		}
	}
	l = open(t, t.TempDir(), &shelf{})
	l.path = filepath.Join(dir, "no such", File)
	if done, err := l.Purge(t.Context(), Selector{Everything: true}); err != nil || done[0].Err == nil {
		t.Error(done, err)
	}
}
