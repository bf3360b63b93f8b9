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

// TestASteppedClockIsForgotten: the clocks agree again after a step forward and back, once new
// times have come for a while.
func TestASteppedClockIsForgotten(t *testing.T) {
	var s Set
	s.List(adapters("sql"), Latest, start)
	scrape := func(stamp, now float64) {
		s.Scrape(fmt.Appendf(nil, "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=\"sql\"} %d\n",
			after(stamp).Unix()), after(now))
	}
	scrape(0, 1)
	scrape(2, 3)
	scrape(4, 5-3600) // this host's clock was set back for a moment
	for at := 6.0; at < 3*clockWindow.Seconds(); at += 2 {
		scrape(at, at+1)
	}
	last := 3*clockWindow.Seconds() + 1
	scrape(last, last+1)
	if used := s.States()[0].Used; used.Before(after(last - 2)) {
		t.Errorf("a use of now counts as %v old", after(last+1).Sub(used).Round(time.Second))
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
