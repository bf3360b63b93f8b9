package bpf

import (
	"errors"
	"os"
	"testing"
	"time"
)

// TestGroupAlone: a group that is read alone has the same figures as among all. An unwatched group
// is an error.
func TestGroupAlone(t *testing.T) {
	h := newHost(t)
	for name, r := range map[string]Reader{"bpf": h.load(), "proc": NewProc(nil)} {
		if _, err := r.Group(os.Getpid()); !errors.Is(err, ErrNotWatched) {
			t.Errorf("%s: nobody watches: %v", name, err)
		}
		if err := r.WatchProcesses(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		spin(20 * time.Millisecond)
		// A thread that ran when the watch began belongs to the group from its next switch on.
		within(t, "the process used a CPU", func() bool {
			spin(time.Millisecond)
			return must[Group](t)(r.Group(os.Getpid())).CPU >= 10*time.Millisecond
		})
		before := must[[]Group](t)(r.Groups())
		one := must[Group](t)(r.Group(os.Getpid()))
		if len(before) != 1 || one.Root != os.Getpid() || one.CPU < before[0].CPU || one.Runs < before[0].Runs {
			t.Errorf("%s: %+v, a moment later alone %+v", name, before, one)
		}
		if err := r.UnwatchProcesses(os.Getpid()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Group(os.Getpid()); !errors.Is(err, ErrNotWatched) {
			t.Errorf("%s: nobody watches any more: %v", name, err)
		}
	}
}

// spin uses a CPU for this long.
func spin(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
	}
}

// TestLookAllocates: the reads of an agent's look allocate nothing.
func TestLookAllocates(t *testing.T) {
	h := newHost(t)
	s := h.load()
	if err := errors.Join(s.WatchPort(9), s.WatchProcesses(os.Getpid())); err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	var d Histogram
	if n := testing.AllocsPerRun(100, func() {
		_, err1 := s.Group(pid)
		_, err2 := s.Port(9)
		if err := s.RunDelay(&d); err != nil || err1 != nil || err2 != nil {
			t.Fatal(err, err1, err2)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
	if d.Count == 0 {
		t.Error("nobody has waited")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Group(pid); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// BenchmarkLook measures the reads of an agent's look.
func BenchmarkLook(b *testing.B) {
	h := newHost(b)
	s := h.load()
	if err := errors.Join(s.WatchPort(9), s.WatchProcesses(os.Getpid())); err != nil {
		b.Fatal(err)
	}
	b.Run("group", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must[Group](b)(s.Group(os.Getpid()))
		}
	})
	b.Run("port", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			must[Port](b)(s.Port(9))
		}
	})
	b.Run("run delay", func(b *testing.B) {
		b.ReportAllocs()
		var d Histogram
		for b.Loop() {
			if err := s.RunDelay(&d); err != nil {
				b.Fatal(err)
			}
		}
	})
}
