package residency

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// readersTold reads what is left and returns the readers as the watcher knows them.
func readersTold(t *testing.T, w *Watcher, known []Reader) []Reader {
	t.Helper()
	var b Batch
	for {
		wake, done := w.step(&b)
		if done && b.Readers != nil {
			known = b.Readers
		} else if !done && wake != nil {
			return known
		}
	}
}

// TestPresent follows which namespaces have blocks, as watchers are told of them.
func TestPresent(t *testing.T) { synctest.Test(t, testPresent) }

func testPresent(t *testing.T) {
	x := New(Options{})
	w := x.Watch(WatchOptions{})
	defer w.Close()
	var known []string
	told := func(what string, want ...string) {
		t.Helper()
		time.Sleep(presentEvery)
		for _, w := range []*Watcher{w, x.Watch(WatchOptions{})} {
			var b Batch
			for {
				wake, done := w.step(&b)
				if done && b.Readers != nil {
					known = slices.Clone(b.Present)
				} else if !done && wake != nil {
					break
				}
			}
			slices.Sort(known)
			if len(known) != len(want) || !slices.Equal(known, want) {
				t.Errorf("%s: %v, want %v", what, known, want)
			}
		}
	}
	put := func(space, chain string, i int, tier Tiers, present bool) {
		t.Helper()
		x.Apply(change(space, chainOf(chain, 3), i, tier, present))
	}
	a, b, ranks := spaceOf("a"), spaceOf("b"), ranksOf("ranks", 16, 2, 1)
	told("at first")
	put(a, "p", 0, Host, true)
	told("the first block", a)
	put(a, "p", 1, Disk, true)
	put(b, "q", 0, Disk, true)
	told("another namespace", a, b)
	put(a, "p", 0, Host, false)
	told("a block is left", a, b)
	put(a, "p", 1, Disk, false)
	told("none is left", b)
	put(ranks[1], "p", 0, Host, true)
	told("a rank alone", b)
	put(ranks[0], "p", 0, Host, true)
	told("the first rank", b, ranks[0])
	for i := range MaxPresent - 1 { // one too many
		put(spaceOf(fmt.Sprint("m", i)), "p", 0, Host, true)
	}
	told("too many")
	put(b, "q", 0, Disk, false)
	if n := len(x.present()); n != MaxPresent {
		t.Errorf("%d namespaces, want as many as may be", n)
	}
}

// TestPresentIsToldSeldom checks that a watcher gets the lists once a second while a namespace
// comes and goes, and at last the right ones, without another change.
func TestPresentIsToldSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := New(Options{})
		w := x.Watch(WatchOptions{})
		defer w.Close()
		ctx, cancel := context.WithCancel(t.Context())
		told := make(chan []string, 2000)
		var reads sync.WaitGroup
		reads.Go(func() {
			var b Batch
			for w.Next(ctx, &b) == nil {
				if b.Readers != nil {
					told <- slices.Clone(b.Present)
				}
			}
		})
		a := spaceOf("a")
		for i := range 1001 { // in two seconds
			x.Apply(change(a, chainOf("p", 1), 0, Host, i%2 == 0))
			time.Sleep(2 * time.Millisecond)
		}
		x.Apply(change(a, chainOf("p", 1), 0, Host, false))
		time.Sleep(time.Hour)
		synctest.Wait()
		times, last := len(told), []string(nil)
		for range times {
			last = <-told
		}
		if times < 4 || times > 5 || len(last) > 0 {
			t.Errorf("told %d times, at last %v", times, last)
		}
		if err := x.Read("n", a); err != nil {
			t.Fatal(err)
		}
		if err := x.Read("m", a); err != nil {
			t.Fatal(err)
		}
		if synctest.Wait(); len(told) == 0 {
			t.Error("a change of the readers is late")
		}
		cancel()
		reads.Wait()
	})
}

// TestReaders follows what engines say they read, over the ends of their connections.
func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := New(Options{})
		base, adapter, other := spaceOf("m"), spaceOf("m+a"), spaceOf("n")
		w := x.Watch(WatchOptions{})
		defer w.Close()
		known := readersTold(t, w, nil)
		told := func(what string, want ...Reader) {
			t.Helper()
			if len(want) == 0 {
				want = []Reader{}
			}
			if known = readersTold(t, w, known); !reflect.DeepEqual(known, want) {
				t.Errorf("%s: %v, want %v", what, known, want)
			}
			late := x.Watch(WatchOptions{All: true})
			defer late.Close()
			got := readersTold(t, late, nil)
			if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(x.Readers(), want) {
				t.Errorf("%s: a new watcher is told %v, want %v", what, got, want)
			}
		}
		read := func(node, space string) {
			t.Helper()
			if err := x.Read(node, space); err != nil {
				t.Fatal(err)
			}
		}
		told("at first")
		read("b", base)
		read("a", other)
		told("two nodes", Reader{"a", []string{other}}, Reader{"b", []string{base}})
		x.EndRead("a", other, false)
		read("b", adapter)
		told("an adapter", Reader{"b", []string{base, adapter}})
		read("b", base) // of a second rank
		x.EndRead("b", base, true)
		x.EndRead("b", adapter, true)
		time.Sleep(readGrace)
		x.ExpireReads()
		told("in the grace", Reader{"b", []string{base, adapter}})
		time.Sleep(time.Nanosecond)
		x.ExpireReads()
		told("after the grace", Reader{"b", []string{base}})

		x.EndRead("b", base, true)
		read("b", base)
		time.Sleep(2 * readGrace)
		x.ExpireReads()
		changes := x.Stats().Changes
		told("it has connected again", Reader{"b", []string{base}})
		x.EndRead("b", base, true)
		read("b", base)
		if x.Stats().Changes != changes {
			t.Error("a new connection that says the same is a change")
		}
		x.EndRead("b", base, true)
		read("b", other)
		told("it has started anew with other weights", Reader{"b", []string{other}})
		x.EndRead("b", other, false)
		x.EndRead("b", other, false)
		x.EndRead("nobody", other, true)
		told("the end")
	})
}

// TestReadersInReports follows what an engine's reports say that it reads, beside its connections.
func TestReadersInReports(t *testing.T) {
	x := New(Options{})
	base, adapter, other := spaceOf("m"), spaceOf("m+a"), spaceOf("n")
	told := func(what string, want ...Reader) {
		t.Helper()
		if got := x.Readers(); len(got) != len(want) || len(got) > 0 && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
		if n := x.Stats().Readers; n != int64(len(want)) {
			t.Errorf("%s: %d readers are counted, want %d", what, n, len(want))
		}
	}
	report := func(r Report) {
		t.Helper()
		r.Engine, r.Epoch = "c/1", 7
		if err := x.Report(&r); err != nil {
			t.Fatal(err)
		}
	}
	report(Report{Number: 1, Fresh: true, Reads: []string{base}})
	told("a report", Reader{"c/1", []string{base}})
	if err := x.Read("c/1", other); err != nil {
		t.Fatal(err)
	}
	report(Report{Number: 2, Reads: []string{base}, Events: []Event{{Kind: Cleared}}})
	told("both ways", Reader{"c/1", []string{other, base}})
	x.EndRead("c/1", other, false)
	report(Report{Number: 3, Reads: []string{adapter}})
	told("another one", Reader{"c/1", []string{adapter}})
	report(Report{Number: 4, Reads: []string{}, Events: []Event{{Kind: Cleared}}})
	told("nothing can be read", Reader{"c/1", []string{}})
	report(Report{Number: 5})
	told("it is no longer said")
	report(Report{Number: 6, Reads: []string{}})
	told("nothing can be read, again", Reader{"c/1", []string{}})
	report(Report{Gone: true})
	told("the engine is gone")
	for what, reads := range map[string][]string{"keys": {"key1;resp.0;"}, "many": make([]string, MaxReads+1)} {
		r := Report{Engine: "c/1", Epoch: 8, Number: 1, Fresh: true, Reads: reads}
		if err := x.Report(&r); !errors.Is(err, ErrReport) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestReadersContinue checks that a watcher that continues after its last change is told later
// changes of readers, and no others.
func TestReadersContinue(t *testing.T) {
	x := New(Options{})
	if err := x.Read("a", spaceOf("m")); err != nil {
		t.Fatal(err)
	}
	o := WatchOptions{Epoch: x.Epoch(), After: x.Stats().Changes}
	w := x.Watch(o)
	if got := readersTold(t, w, nil); got != nil {
		t.Errorf("told again: %v", got)
	}
	w.Close()
	x.EndRead("a", spaceOf("m"), false)
	w = x.Watch(o)
	defer w.Close()
	if got := readersTold(t, w, nil); got == nil || len(got) > 0 {
		t.Errorf("told %v, want an empty list", got)
	}
}

func TestReadersAreBounded(t *testing.T) {
	x := New(Options{})
	for i := range MaxReaders {
		if err := x.Read(fmt.Sprint(i), spaceOf("m")); err != nil {
			t.Fatal(err)
		}
	}
	for i := range MaxReads - 1 {
		if err := x.Read("0", spaceOf(fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	for node, space := range map[string]string{"more": spaceOf("m"), "0": spaceOf("more")} {
		if err := x.Read(node, space); !errors.Is(err, ErrReaders) {
			t.Errorf("%s: %v", node, err)
		}
	}
	x.EndRead("0", spaceOf("3"), true)
	if err := x.Read("0", spaceOf("more")); err != nil {
		t.Error("what has ended takes up room: ", err)
	}
	if s := x.Stats(); s.Readers != MaxReaders || s.ReadsRefused != 2 {
		t.Errorf("%+v", s)
	}
	for what, c := range map[string][2]string{
		"no node":    {"", spaceOf("m")},
		"long node":  {string(make([]byte, MaxEngineName+1)), spaceOf("m")},
		"keys":       {"0", "key1;resp.0;"},
		"no text":    {"0", "m"},
		"other rank": {"0", ranksOf("m", 16, 2, 1)[1]},
	} {
		if err := x.Read(c[0], c[1]); err == nil || errors.Is(err, ErrReaders) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
