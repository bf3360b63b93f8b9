package lora

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// loadedByCounting is Loaded by its definition: it counts the adapters that were used later.
func loadedByCounting(t *table, e *entry) (loaded, known bool) {
	at, later, candidates := e.use.at.Load(), 0, 0
	for _, other := range t.order {
		used := other.use.at.Load()
		if used > at {
			later++
		}
		if other.listed || used != 0 {
			candidates++
		}
	}
	switch {
	case !e.listed && at == 0:
		return false, t.answered
	case t.keeping == Listed:
		return true, true
	case t.keeping == Unknown || t.slots == 0:
		return at != 0, at != 0 && later == 0
	case candidates <= t.slots:
		return true, true
	case later >= t.slots:
		return false, true
	}
	return at != 0, at != 0
}

// compare checks each adapter of s by the definition.
func compare(t *testing.T, s *Set, step any) {
	t.Helper()
	table := s.load()
	for i, state := range s.States() {
		loaded, known := loadedByCounting(table, table.order[i])
		if state.Loaded != loaded || state.Known != known {
			t.Fatalf("%v: %s is loaded %v, known %v; by counting %v, %v", step, state.Name, state.Loaded, state.Known,
				loaded, known)
		}
	}
}

// TestLoadedIsTheCount checks the summary of uses against counting, after each of many changes.
func TestLoadedIsTheCount(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 0))
		var s Set
		name := func() string { return fmt.Sprint("a", r.IntN(12)) }
		some := func() (names []Adapter) {
			for range r.IntN(8) {
				names = append(names, Adapter{name(), "base"})
			}
			return names
		}
		for step := range 200 {
			at := after(float64(r.IntN(step + 1)))
			switch r.IntN(12) {
			case 0:
				s.List(some(), Keeping(r.IntN(3)), at)
			case 1:
				s.Expect(some())
			case 2:
				s.SetSlots(r.IntN(6))
			case 3:
				s.Unuse(name(), at)
			case 4:
				s.Scrape(fmt.Appendf(nil, "vllm:lora_requests_info{running_lora_adapters=%q} %d\n", name(),
					at.Unix()), at)
			case 5:
				if r.IntN(10) == 0 {
					s.Forget()
				}
			default:
				s.Use(name(), at)
			}
			compare(t, &s, fmt.Sprint("seed ", seed, ", step ", step))
		}
	}
}

// TestUsesAtOnce checks that the summary is right after uses of several goroutines.
func TestUsesAtOnce(t *testing.T) {
	for round := range 200 {
		var s Set
		s.SetSlots(2)
		var names []string
		for i := range 6 {
			names = append(names, fmt.Sprint("a", i))
		}
		s.List(adapters(names...), Latest, start)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for k := range 20 {
					s.Use(names[r.IntN(len(names))], after(float64(k)))
				}
			})
		}
		wg.Wait()
		compare(t, &s, round)
	}
}

// TestAUseWalksNoAdapters: a use looks at one adapter where one may be among the latest, and where
// the list says what is loaded.
func TestAUseWalksNoAdapters(t *testing.T) {
	for name, c := range map[string]struct {
		keeping Keeping
		slots   int
	}{
		"listed": {Listed, 0}, "listed, with slots": {Listed, 2}, "unknown kind": {Unknown, 0},
		"unknown slots": {Latest, 0}, "one slot": {Latest, 1},
	} {
		var s Set
		s.SetSlots(c.slots)
		s.Expect(adapters("x"))
		s.List(adapters("a", "b"), c.keeping, start)
		s.latest.alive.Store(-1) // a walk counts them
		s.Use("a", after(1))
		s.Use("b", after(2))
		s.UseBytes([]byte("a"), after(3))
		if c.keeping == Listed {
			s.Use("x", after(4))
		}
		if s.latest.alive.Load() != -1 {
			t.Errorf("%s: a use looks at all adapters", name)
		}
		s.latest.alive.Store(2)
		compare(t, &s, name)
	}
}

// TestUsesAtOnceOfOneSlot checks the summary after uses while the adapters and the slots change.
func TestUsesAtOnceOfOneSlot(t *testing.T) {
	for round := range 200 {
		var s Set
		s.List(adapters("a0", "a1", "a2", "a3"), Latest, start)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(round), uint64(i)))
				for k := range 40 {
					at := after(float64(k))
					switch what := r.IntN(40); {
					case i > 0 || what > 8:
						s.Use(fmt.Sprint("a", r.IntN(5)), at)
					case what == 0:
						s.Forget()
					case what < 3:
						s.SetSlots(r.IntN(3))
					case what < 5:
						s.Unuse("a4", after(float64(r.IntN(k+1))))
					case what < 7:
						s.Expect(adapters("a4")[:r.IntN(2)])
					default:
						s.List(adapters("a0", "a1", "a2", "a3")[r.IntN(2):], Keeping(r.IntN(3)), at)
					}
				}
			})
		}
		wg.Wait()
		compare(t, &s, round)
	}
}

// TestAUseIsTakenBackMeanwhile checks the summary after changes that come between a use and its
// summary.
func TestAUseIsTakenBackMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*Set){
		"restart":   (*Set).Forget,
		"unload":    func(s *Set) { s.List(adapters("b", "c"), Latest, after(3)) },
		"two slots": func(s *Set) { s.SetSlots(2) },
		"all in memory, and back": func(s *Set) {
			s.List(adapters("a", "b", "c"), Listed, start)
			s.List(adapters("a", "b", "c"), Latest, start)
		},
	} {
		var s Set
		s.SetSlots(1)
		s.List(adapters("a", "b", "c"), Latest, start)
		s.Use("a", after(1))
		old := s.load()
		e := old.entries["a"]
		was, _ := e.use.note(after(2))
		change(&s)
		s.summarize(old, e, was, after(2))
		compare(t, &s, name)
	}
}

// BenchmarkUse measures a use of each of many adapters, by how the engine keeps them.
func BenchmarkUse(b *testing.B) {
	var names []string
	for i := range 256 {
		names = append(names, fmt.Sprint("adapter-", i))
	}
	for what, keeping := range map[string]Keeping{"listed": Listed, "unknown slots": Latest} {
		var s Set
		s.List(adapters(names...), keeping, start)
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for k := int64(0); b.Loop(); k++ {
				s.Use(names[k%256], start.Add(time.Duration(k)))
			}
		})
	}
}

// BenchmarkMany measures a look at all of many adapters, and a use of each.
func BenchmarkMany(b *testing.B) {
	for _, n := range []int{64, 1024} {
		var s Set
		var names []string
		for i := range n {
			names = append(names, fmt.Sprint("adapter-", i))
		}
		s.SetSlots(8)
		s.List(adapters(names...), Latest, start)
		for i, name := range names {
			s.Use(name, after(float64(i)))
		}
		b.Run(fmt.Sprint("loaded/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.Loaded(names[n/2])
			}
		})
		b.Run(fmt.Sprint("states/", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				s.States()
			}
		})
		b.Run(fmt.Sprint("use again/", n), func(b *testing.B) {
			b.ReportAllocs()
			for k := 0; b.Loop(); k++ {
				s.Use(names[n-1], after(float64(n+k)))
			}
		})
		b.Run(fmt.Sprint("use in turn/", n), func(b *testing.B) {
			b.ReportAllocs()
			for k := 0; b.Loop(); k++ {
				s.Use(names[k%n], after(float64(10*n*b.N+k)))
			}
		})
	}
}
