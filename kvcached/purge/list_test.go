package purge

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func with(t testing.TB, l *List, models ...string) *List {
	t.Helper()
	for _, m := range models {
		var err error
		if l, err = l.With(Selector{Model: m}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func merge(t testing.TB, mine, theirs *List) *List {
	t.Helper()
	l, err := Merge(mine, theirs)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func space(model string) string { return "kv1;" + model + ";main;bf16;l;16;1.0;1.0;" }

// TestStamps checks that only later purges of a block bar it. All purges bar a block with the stamp
// of another history, or of a state that the list does not know.
func TestStamps(t *testing.T) {
	one := with(t, &List{History: 7}, "a")
	two := with(t, one, "b")
	l := with(t, two, "a")
	fork := with(t, two, "c")
	if len(l.Purges) != 2 || l.Revision != 3 || fork.Revision != 3 {
		t.Fatalf("%+v", l)
	}
	for _, c := range []struct {
		s     Stamp
		model string
		want  bool
	}{
		{l.Stamp(), "a", false}, {two.Stamp(), "a", true}, {two.Stamp(), "b", false}, {one.Stamp(), "b", true},
		{Stamp{8, l.Stamp().State}, "b", true}, {Stamp{}, "a", true}, {Stamp{8, 3}, "c", false},
		{fork.Stamp(), "a", true}, {fork.Stamp(), "b", true}, {Stamp{7, 0}, "a", true},
	} {
		if got := l.Bars(c.s, space(c.model), nil); got != c.want {
			t.Errorf("%+v %s: %v", c.s, c.model, got)
		}
	}
}

// TestMerge checks that purges lost by etcd get revisions above all known ones, and only once.
func TestMerge(t *testing.T) {
	mine := with(t, &List{}, "a", "b")
	etcd := merge(t, mine, nil)
	if etcd.History == 0 || etcd.Revision != 2 || len(etcd.Purges) != 2 {
		t.Fatalf("%+v", etcd)
	}
	if again := merge(t, etcd, etcd); again != etcd {
		t.Error("a list that is known is written again")
	}
	// Another host has the same purges under the history before etcd was emptied.
	if other := merge(t, mine, etcd); other != etcd {
		t.Errorf("%+v", other)
	}
	// A host of another history has one more purge and lacks one.
	away := with(t, &List{History: 99}, "x", "c")
	merged := merge(t, away, etcd)
	if merged.History != etcd.History || merged.Revision != 4 || len(merged.Purges) != 4 ||
		!merged.Follows(etcd) {
		t.Errorf("%+v", merged)
	}
	// etcd goes back to a state before a host's list.
	later := with(t, etcd, "d", "e")
	set := merge(t, later, with(t, etcd, "f"))
	if set.History == etcd.History || len(set.Purges) != 5 || set.Revision != 6 ||
		!slices.ContainsFunc(set.Purges, func(p Purge) bool { return p.Model == "e" && p.Revision > 4 }) {
		t.Errorf("%+v", set)
	}
	// etcd goes back to an earlier state. Then other hosts add as many purges as etcd has lost.
	further := with(t, etcd, "f", "g", "h")
	if further.Follows(later) {
		t.Error("a list with other purges follows")
	}
	if set := merge(t, later, further); set.History == etcd.History || len(set.Purges) != 7 || set.Revision != 7 {
		t.Errorf("%+v", set)
	}
}

// TestFold adds more purges than a list may have. The older half becomes one purge of everything,
// and hosts that have carried out the fold do not repeat it.
func TestFold(t *testing.T) {
	l := &List{History: 1}
	for i := range MaxPurges {
		l.Revision++
		l.Purges = append(l.Purges, Purge{fmt.Sprintf("%026d", i), l.Revision, Selector{Model: fmt.Sprint("m", i)}})
	}
	l.Tips = []Tip{{MaxPurges / 2, "a"}, {MaxPurges/2 + 1, "b"}, {MaxPurges, "c"}}
	before := *l
	before.Purges = slices.Clone(l.Purges)
	l = with(t, l, "one more")
	if len(l.Purges) != MaxPurges/2+1 || !l.Purges[0].Everything || l.Purges[0].Revision != MaxPurges/2+1 {
		t.Fatalf("%d purges, %+v first", len(l.Purges), l.Purges[0])
	}
	if more := l.since(&before); len(more) != 1 {
		t.Errorf("%d purges to carry out", len(more))
	}
	if !l.Follows(&before) {
		t.Error("a fold does not follow")
	}
	if !l.Bars(Stamp{1, l.Tips[0].state()}, space("m"), nil) || l.Bars(Stamp{1, l.Tips[1].state()}, space("m"), nil) {
		t.Error("stamps at the fold")
	}
	// A host of another history knows one of the purges in the fold.
	other := &List{History: 2, Revision: 1, Purges: []Purge{{before.Purges[MaxPurges/2].ID, 1, Selector{Model: "m"}}}}
	if more := l.since(other); !more[0].Everything {
		t.Error("a fold is taken for the purge that it ends with")
	}
	long := Selector{Model: strings.Repeat("x", 500)}
	for i := range 3000 {
		long.Tenant = fmt.Sprint(i)
		l.Revision++
		l.Purges = append(l.Purges, Purge{fmt.Sprintf("%026d", i), l.Revision, long})
	}
	if l = with(t, l, "last"); len(l.Encode()) > MaxBytes {
		t.Errorf("%d bytes", len(l.Encode()))
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"history":1,"revision":2,"purges":[{"id":"ABCDEFGHIJKLMNOPQRSTUVWXYZ","revision":2,"model":"m"}]}`))
	f.Add([]byte(`{"history":1,"revision":1,"purges":[{"id":"","revision":2,"everything":true}]}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		l, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(l.Encode())
		if err != nil || !bytes.Equal(again.Encode(), l.Encode()) {
			t.Fatal(err)
		}
		if merged, err := Merge(l, nil); err == nil && merged.check() != nil {
			t.Fatal(merged.check())
		}
		if more, err := l.With(Selector{Model: "m"}); err == nil && more.check() != nil {
			t.Fatal(more.check())
		}
	})
}

// shelf is a Store that records its calls.
type shelf struct {
	err    error
	swept  func(match func(string, []byte) bool)
	blocks int
}

func (s *shelf) Purge(_ context.Context, match func(string, []byte) bool) (int, error) {
	if s.swept != nil {
		s.swept(match)
	}
	return s.blocks, s.err
}

// TestLocalPurges checks that the fleet does not carry out the purges that a host carried out
// alone, without etcd, before it joined.
func TestLocalPurges(t *testing.T) {
	alone := open(t, Options{Store: &shelf{}})
	if _, err := alone.Purge(t.Context(), Selector{Everything: true}); err != nil {
		t.Fatal(err)
	}
	etcd := merge(t, with(t, &List{}, "a"), nil)
	other := open(t, Options{Store: &shelf{}})
	if _, err := other.Replace(t.Context(), other.List(), etcd); err != nil {
		t.Fatal(err)
	}
	now := merge(t, alone.List(), etcd)
	if now != etcd {
		more := now.since(other.done.Load())
		t.Errorf("a purge that covered one host is carried out by the fleet: %+v", more)
	}
}

// TestAwayForLong checks that a host that was away for more than maxTips purges brings none back.
func TestAwayForLong(t *testing.T) {
	etcd := merge(t, with(t, &List{}, "x"), nil)
	space := Selector{Namespaces: []string{"key1;resp.0;"}}
	flush := func(l *List) *List {
		l, err := l.With(space)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	etcd = flush(etcd)
	away := etcd
	for range maxTips + 1 {
		etcd = flush(etcd)
	}
	stays := etcd
	now := merge(t, away, etcd)
	if now != etcd {
		t.Errorf("a host that comes back makes the fleet purge again: %+v", now.since(stays))
	}
}

// TestFoldOfEverything checks that a fold that ends with a purge of everything is not taken for
// that purge.
func TestFoldOfEverything(t *testing.T) {
	base := merge(t, with(t, &List{}, "first"), nil)
	a, err := base.With(Selector{Everything: true}) // host A; then etcd goes back to base
	if err != nil {
		t.Fatal(err)
	}
	many := func(l *List, prefix string, n int) *List { // as n calls of With, without the time that they take
		out := *l
		out.Purges = slices.Clone(l.Purges)
		for i := range n {
			out.Revision++
			out.Purges = append(out.Purges, Purge{newID(), out.Revision, Selector{Model: fmt.Sprint(prefix, i)}})
		}
		out.Tips = out.moved()
		return &out
	}
	b := many(base, "b", MaxPurges/2-1) // the others go on
	l := merge(t, a, b)                 // A's purge is lost and comes back
	l = many(l, "c", MaxPurges-len(l.Purges))
	l = with(t, l, "last")
	// Host C has the list a, was away and has blocks of b0 made after A's purge of everything.
	more := matchAny(l.since(a))
	if !more(space("b0"), nil) {
		t.Error("the fold does not reach a host that knows the purge of everything it ends with")
	}
}
