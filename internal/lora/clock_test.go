package lora

import (
	"fmt"
	"testing"
	"time"
)

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

// pageOf returns a page on which two adapters ran at the given times after the start.
func pageOf(sql, chat float64) []byte {
	const series = "vllm:lora_requests_info{max_lora=\"1\",running_lora_adapters=%q} %d\n"
	return fmt.Appendf(fmt.Appendf(nil, series, "sql", after(sql).Unix()), series, "chat", after(chat).Unix())
}

// usedAt fails unless the last use of an adapter was at about the given time after the start.
func usedAt(t *testing.T, s *Set, name string, at float64) {
	t.Helper()
	for _, state := range s.States() {
		if off := state.Used.Sub(after(at)).Abs(); state.Name == name && off > 3*time.Second {
			t.Errorf("the last use of %s is off by %v", name, off)
		}
	}
}

// TestAnEngineAheadForAMoment: an engine's clock goes an hour forward and back. The uses after it
// have their times.
func TestAnEngineAheadForAMoment(t *testing.T) {
	var s Set
	s.List(adapters("sql", "chat"), Latest, start)
	s.Scrape(pageOf(0, 0), after(1))
	s.Scrape(pageOf(2, 2), after(3))
	s.Scrape(pageOf(2, 3604), after(5))
	usedAt(t, &s, "chat", 5)
	s.Scrape(pageOf(6, 7), after(8))
	usedAt(t, &s, "sql", 6)
	usedAt(t, &s, "chat", 7)
	s.Scrape(pageOf(10, 7), after(11))
	usedAt(t, &s, "sql", 10)
	s.Scrape(pageOf(10, 12), after(13))
	usedAt(t, &s, "chat", 12)
	want(t, &s, "chat ran last", "sql chat", "-+")
}

// TestASeriesAhead: the time of an adapter that ran while the engine's clock was ahead stays on the
// pages. The uses of another adapter get their times back after a while.
func TestASeriesAhead(t *testing.T) {
	var s Set
	s.List(adapters("sql", "chat"), Latest, start)
	s.Scrape(pageOf(0, 0), after(1))
	s.Scrape(pageOf(2, 3602), after(3))
	last := 0.0
	for last = 4; last < 3*clockWindow.Seconds(); last += 2 {
		s.Scrape(pageOf(last, 3602), after(last+1))
	}
	usedAt(t, &s, "sql", last-2)
}

// TestAHostAheadForAMoment: this host's clock goes an hour forward and back. A use meanwhile counts
// as one of now, and later ones of other adapters are later.
func TestAHostAheadForAMoment(t *testing.T) {
	for name, look := range map[string]func(*Set){
		"clamp":  func(s *Set) { s.Clamp(after(10)) },
		"scrape": func(s *Set) { s.Scrape(nil, after(10)) },
	} {
		var s Set
		s.SetSlots(1)
		s.List(adapters("a", "b", "c"), Latest, start)
		s.Use("a", after(3600))
		s.Use("b", after(3601))
		s.Use("c", after(1))
		look(&s)
		want(t, &s, name+": the order stays", "a b c", "-+-")
		usedAt(t, &s, "a", 10)
		usedAt(t, &s, "b", 10)
		usedAt(t, &s, "c", 1)
		s.Use("c", after(11))
		want(t, &s, name+": c was used since", "a b c", "--+")
		compare(t, &s, name)
	}
	var s Set
	s.List(adapters("a"), Latest, start)
	s.Use("a", after(60))
	s.Clamp(after(10))
	usedAt(t, &s, "a", 60) // now was read a while ago
}

// TestScrapeOfANewAdapter: a page counts for an adapter that is listed while Scrape waits.
func TestScrapeOfANewAdapter(t *testing.T) {
	var s, with Set
	s.List(adapters("sql"), Latest, start)
	with.List(adapters("sql", "chat"), Latest, start)
	s.mu.Lock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Scrape(pageOf(0, 1), after(2))
	}()
	time.Sleep(20 * time.Millisecond) // until Scrape waits
	s.table.Store(with.load())
	s.mu.Unlock()
	<-done
	want(t, &s, "chat ran last", "sql chat", "-+")
}
