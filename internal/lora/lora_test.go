package lora

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

var start = time.Unix(1_800_000_000, 0)

func after(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }

func adapters(names ...string) (all []Adapter) {
	for _, n := range names {
		all = append(all, Adapter{n, "base"})
	}
	return all
}

// told returns what s says of each adapter: + loaded, - not loaded, ? unknown.
func told(s *Set, names ...string) string {
	var b strings.Builder
	for _, n := range names {
		loaded, known := s.Loaded(n)
		switch {
		case !known:
			b.WriteString("?")
		case loaded:
			b.WriteString("+")
		default:
			b.WriteString("-")
		}
	}
	return b.String()
}

func want(t *testing.T, s *Set, what, names, says string) {
	t.Helper()
	if got := told(s, strings.Fields(names)...); got != says {
		t.Errorf("%s: %s is %s, want %s", what, names, got, says)
	}
}

// TestLatestAreLoaded: of more adapters than slots, the ones used last are loaded.
func TestLatestAreLoaded(t *testing.T) {
	var s Set
	want(t, &s, "nothing is known", "a", "?")
	s.Use("a", start) // is ignored
	s.List(adapters("a", "b", "c"), Latest, start)
	want(t, &s, "no slots, no use", "a b c other", "???-")
	s.Use("a", after(1))
	want(t, &s, "no slots: only the latest use is sure", "a b c", "+??")
	s.Use("b", after(2))
	want(t, &s, "no slots: another one", "a b c", "?+?")
	s.SetSlots(2)
	want(t, &s, "two slots, two uses", "a b c", "++-")
	s.Use("c", after(3))
	want(t, &s, "the oldest leaves", "a b c", "-++")
	s.Use("c", after(1)) // late news
	s.Use("a", after(2.5))
	want(t, &s, "the order of uses counts, not of news", "a b c", "+-+")
	s.SetSlots(3)
	want(t, &s, "room for all", "a b c", "+++")
	s.Forget()
	s.SetSlots(2)
	want(t, &s, "after a restart", "a b c", "???")
	s.Use("a", after(4))
	want(t, &s, "one of two slots is known", "a b c", "+??")
}

// TestListChanges: an adapter that appears has just been loaded, and one that leaves is gone.
func TestListChanges(t *testing.T) {
	var s Set
	s.SetSlots(1)
	s.List(adapters("a", "b"), Latest, start)
	s.Use("a", after(1))
	s.List(adapters("a", "b", "c"), Latest, after(2))
	want(t, &s, "the new one", "a b c", "--+")
	s.List(adapters("a", "b"), Latest, after(3))
	want(t, &s, "unloaded", "a b c", "+--")
	s.List(nil, Latest, after(4))
	want(t, &s, "none", "a b c", "---")
}

// TestExpected: an adapter that the engine does not list is loaded once it was used, until a list
// without it.
func TestExpected(t *testing.T) {
	var s Set
	s.SetSlots(4)
	s.Expect(adapters("x", "a"))
	want(t, &s, "before the first list", "x a", "??")
	s.List(adapters("a"), Latest, start)
	want(t, &s, "not used", "x a", "-+")
	s.Use("x", after(0.5))
	s.Unuse("x", after(0.5))
	s.Use("a", after(0.5))
	s.Unuse("a", after(0.5))
	want(t, &s, "taken back, which a listed one is not", "x a", "-+")
	s.Use("x", after(1))
	s.Unuse("x", after(0.5))
	want(t, &s, "used", "x a", "++")
	if was := s.load(); !s.expects(adapters("a", "x")) || s.load() != was {
		t.Error("the same expectation changes the table")
	}
	s.List(adapters("a"), Latest, after(2))
	want(t, &s, "the engine does not list it", "x a", "-+")
	s.Use("x", after(3))
	was := s.load()
	s.List(adapters("a"), Latest, after(2.5))
	want(t, &s, "a list that is older than the use", "x a", "++")
	if s.load() != was {
		t.Error("the same list changes the table")
	}
	s.List(adapters("a", "x"), Latest, after(4))
	s.Expect(nil)
	want(t, &s, "listed, and expected no more", "x a", "++")
	s.Expect(adapters("y"))
	s.Expect(nil)
	if got := len(s.States()); got != 2 {
		t.Errorf("%d adapters are left", got)
	}
}

func TestOtherEngines(t *testing.T) {
	var s Set
	s.Expect(adapters("x"))
	s.List(adapters("a"), KeepingOf("sglang"), start)
	want(t, &s, "SGLang lists what is in memory", "a x other", "+--")
	s.Use("x", after(1))
	want(t, &s, "and has loaded it", "a x", "++")
	var o Set
	o.List(adapters("a", "b"), KeepingOf("openai_compat"), start)
	want(t, &o, "another engine", "a b", "??")
}

// TestScrape: a page orders the uses by the engine's own clock, whatever time that clock tells. A
// page without news changes nothing.
func TestScrape(t *testing.T) {
	page, err := os.ReadFile("../enginemetrics/testdata/vllm-lora.txt")
	if err != nil {
		t.Fatal(err)
	}
	var s Set
	s.List(adapters("sql", "chat", "third"), Latest, start)
	s.Scrape(page, after(10))
	want(t, &s, "chat ran last, and there is one slot", "sql chat third", "-+-")
	if at := s.States()[0]; at.Name != "chat" || at.Used.After(after(10)) || s.Slots() != 1 {
		t.Errorf("%+v, %d slots", at, s.Slots())
	}
	s.Use("third", after(11))
	s.Scrape(page, after(12))
	want(t, &s, "the same page again", "sql chat third", "--+")
	s.Scrape(fmt.Appendf(page, "vllm:lora_requests_info{max_lora=\"2\",running_lora_adapters=\"sql\"} %v\n", 1795726460), after(13))
	want(t, &s, "sql ran again, in one of two slots now", "sql chat third", "+-+")
	s.Use("third", after(17)) // a request that the engine's page at 18 does not have yet
	s.Scrape(fmt.Appendf(page, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="chat"} 1795726462`+"\n"), after(18))
	want(t, &s, "the page is older than a request that was sent", "sql chat third", "--+")
	s.SetSlots(2)
	const both = `vllm:lora_requests_info{max_lora="1",running_lora_adapters="third"} 1795726470
vllm:lora_requests_info{max_lora="1",running_lora_adapters="sql"} 1795726467
vllm:lora_requests_info{max_lora="2",running_lora_adapters="chat,third"} 1795726450
`
	s.Scrape([]byte(both), after(20))
	want(t, &s, "the latest of an adapter's series counts, in any order", "sql chat third", "+-+")
	if used := s.States()[2].Used; used.Before(after(19)) || used.After(after(24)) {
		t.Errorf("%+v", s.States()[2])
	}
	s.Scrape(nil, after(21))
	if s.Slots() != 2 {
		t.Error("a page that says nothing of adapters takes the slots away")
	}
}

// TestOldUsesOfAnIdleEngine: an old time on the first page is no use of now, and does not beat a
// request of this router that came before the page.
func TestOldUsesOfAnIdleEngine(t *testing.T) {
	var s Set
	s.SetSlots(1)
	s.List(adapters("sql", "chat"), Latest, start)
	s.Use("sql", after(1))
	page := fmt.Appendf(nil, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="chat"} %d`+"\n", after(-100).Unix())
	s.Scrape(page, after(2))
	want(t, &s, "chat ran long ago", "sql chat", "+-")
	page = fmt.Appendf(nil, `vllm:lora_requests_info{max_lora="1",running_lora_adapters="chat"} %d`+"\n", after(3).Unix())
	s.Scrape(page, after(4))
	want(t, &s, "chat has run again", "sql chat", "-+")
}

func TestLookupsAllocateNothing(t *testing.T) {
	var s Set
	s.SetSlots(2)
	s.List(adapters("a", "b", "c"), Latest, start)
	name, at := []byte("b"), after(1)
	if n := testing.AllocsPerRun(100, func() {
		s.Use("a", at)
		s.UseBytes(name, at)
		s.Loaded("c")
		s.Has("c")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestConcurrent is for the race detector.
func TestConcurrent(t *testing.T) {
	var s Set
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for k := range 200 {
				switch i {
				case 0:
					s.List(adapters("a", fmt.Sprint("n", k%3)), Latest, after(float64(k)))
				case 1:
					s.Scrape([]byte(`vllm:lora_requests_info{max_lora="1",running_lora_adapters="a"} 5`), after(float64(k)))
				case 2:
					s.Expect(adapters(fmt.Sprint("e", k%2)))
					s.Use("e0", after(float64(k)))
				default:
					s.Loaded("a")
					s.States()
				}
			}
		})
	}
	wg.Wait()
}

func BenchmarkLoaded(b *testing.B) {
	var s Set
	var names []string
	for i := range 64 {
		names = append(names, fmt.Sprint("adapter-", i))
	}
	s.SetSlots(8)
	s.List(adapters(names...), Latest, start)
	for i, n := range names {
		s.Use(n, after(float64(i)))
	}
	for b.Loop() {
		s.Loaded("adapter-40")
	}
}
