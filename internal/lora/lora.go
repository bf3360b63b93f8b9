// Package lora follows which LoRA adapters an inference engine has loaded.
//
// An engine lists adapters as models with a parent. vLLM can compute for a fixed number of adapters
// at once, its slots, and keeps the ones used last. vLLM tells the slots, and when it had requests
// for which adapter. SGLang lists the adapters that are in its memory, and no others. Routers add
// the requests that they have sent, and KV events the blocks that an engine has stored.
package lora

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/enginemetrics"
)

// ChangeTime bounds the loading or unloading of an adapter, in every process that takes part.
const ChangeTime = 30 * time.Minute

// Adapter is a LoRA adapter that an engine lists.
type Adapter struct {
	Name string
	Base string // name of the model that it adapts
}

// Keeping says how an engine keeps its adapters.
type Keeping uint8

// An engine of an unknown kind may have loaded any adapter that it lists.
const (
	Unknown Keeping = iota
	Latest          // the adapters used last are loaded, as many as there are slots (vLLM)
	Listed          // the listed adapters are loaded (SGLang)
)

// KeepingOf returns how an engine of a kind keeps adapters. The kinds are those of the agent's
// configuration.
func KeepingOf(kind string) Keeping {
	switch kind {
	case "vllm":
		return Latest
	case "sglang":
		return Listed
	}
	return Unknown
}

// Set holds the adapters of one engine. The zero value knows no adapter. Set is safe for concurrent
// use. Has and Loaded take no lock, look at one adapter, and allocate nothing. Use takes a lock
// in three cases: the adapter is the oldest of the latest of an engine with several slots, or none
// of them; the engine does not list the adapter and has not used it; the adapters change meanwhile.
type Set struct {
	table  atomic.Pointer[table]
	mu     sync.Mutex // held by the methods that change the table or read the engine's metrics
	clock  clock      // guarded by mu
	latest latest
}

// table is what is known of an engine. table is immutable except for the uses.
type table struct {
	keeping  Keeping
	slots    int // adapters that the engine can use at once; 0: unknown
	answered bool
	entries  map[string]*entry
	order    []*entry  // the entries sorted by name
	expected []Adapter // by the last Expect; nil: List has changed the entries since
}

// entry is one adapter. entry is immutable, and so is the pointer to its use. Tables share entries.
type entry struct {
	Adapter
	listed bool
	use    *use
}

// use is when the engine was last known to compute for an adapter.
type use struct {
	at    atomic.Int64 // Unix nanoseconds; 0: never
	stamp float64      // by the engine's own clock, in Unix seconds; guarded by Set.mu
}

var nothing table

func (s *Set) load() *table {
	if t := s.table.Load(); t != nil {
		return t
	}
	return &nothing
}

// List replaces the adapters that the engine lists, as it did at the given time or later. An
// adapter that was not in the last list has been loaded since. An adapter that is not listed is not
// loaded, unless it was used later.
func (s *Set) List(adapters []Adapter, keeping Keeping, at time.Time) {
	if s.load().lists(adapters, keeping, at) {
		return
	}
	s.change(func(t *table) {
		first := !t.answered
		t.answered, t.keeping, t.expected = true, keeping, nil
		listed := map[string]bool{}
		for _, a := range adapters {
			listed[a.Name] = true
			e, known := t.entries[a.Name]
			if !known {
				e = &entry{use: &use{}}
			}
			if !first && (!known || !e.listed) {
				e.use.note(at)
			}
			t.entries[a.Name] = &entry{Adapter: a, listed: true, use: e.use}
		}
		for name, e := range t.entries {
			if listed[name] {
				continue
			}
			if e.listed {
				delete(t.entries, name)
			} else {
				e.use.endBefore(at)
			}
		}
	})
}

// lists says whether List would change nothing.
func (t *table) lists(adapters []Adapter, keeping Keeping, at time.Time) bool {
	if !t.answered || t.keeping != keeping {
		return false
	}
	listed := 0
	for _, e := range t.order {
		if e.listed {
			listed++
		} else if e.use.before(at) {
			return false
		}
	}
	for _, a := range adapters {
		if e := t.entries[a.Name]; e == nil || !e.listed || e.Adapter != a {
			return false
		}
	}
	return listed == len(adapters)
}

// Expect says which adapters the engine may load at their first request, besides those that it
// lists. Expect changes nothing if they are expected already. Expect keeps the slice.
func (s *Set) Expect(adapters []Adapter) {
	t := s.load()
	if t.expected != nil && slices.Equal(t.expected, adapters) || len(adapters) == 0 && s.expects(nil) {
		return
	}
	s.change(func(t *table) {
		t.expected = adapters
		var wanted map[Adapter]bool // made for the first of the entries that may leave
		for name, e := range t.entries {
			if e.listed {
				continue
			}
			if wanted == nil {
				wanted = setOf(adapters)
			}
			if !wanted[e.Adapter] {
				delete(t.entries, name)
			}
		}
		for _, a := range adapters {
			if t.entries[a.Name] == nil {
				t.entries[a.Name] = &entry{Adapter: a, use: &use{}}
			}
		}
	})
}

func setOf(adapters []Adapter) map[Adapter]bool {
	set := make(map[Adapter]bool, len(adapters))
	for _, a := range adapters {
		set[a] = true
	}
	return set
}

func (s *Set) expects(adapters []Adapter) bool {
	t, expected := s.load(), 0
	for _, e := range t.order {
		if !e.listed {
			expected++
		}
	}
	for _, a := range adapters {
		switch e := t.entries[a.Name]; {
		case e == nil:
			return false
		case !e.listed:
			expected--
		}
	}
	return expected == 0
}

// SetSlots says how many adapters the engine can use at once; 0: unknown.
func (s *Set) SetSlots(n int) {
	if s.load().slots != n {
		s.change(func(t *table) { t.slots = n })
	}
}

// change publishes a changed copy of the table.
func (s *Set) change(edit func(*table)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.load()
	t := *old
	t.entries = make(map[string]*entry, len(old.entries))
	for name, e := range old.entries {
		t.entries[name] = e
	}
	edit(&t)
	t.order = make([]*entry, 0, len(t.entries))
	for _, e := range t.entries {
		t.order = append(t.order, e)
	}
	slices.SortFunc(t.order, func(a, b *entry) int { return strings.Compare(a.Name, b.Name) })
	s.table.Store(&t)
	s.latest.settle(&t)
}

// Use notes that the engine computes for an adapter at the given time. Use ignores other models.
func (s *Set) Use(name string, at time.Time) {
	t := s.load()
	if e := t.entries[name]; e != nil {
		s.note(t, e, at)
	}
}

// UseBytes is Use for a name in a buffer.
func (s *Set) UseBytes(name []byte, at time.Time) {
	t := s.load()
	if e := t.entries[string(name)]; e != nil {
		s.note(t, e, at)
	}
}

// note notes a use of an entry of t.
func (s *Set) note(t *table, e *entry, at time.Time) {
	if was, moved := e.use.note(at); moved {
		s.summarize(t, e, was, at)
	}
}

// summarize brings the summary up to date after a use of an entry of t that was last used at was.
// Each change of the table, and each use that is taken back, settles the summary anew.
func (s *Set) summarize(t *table, e *entry, was int64, at time.Time) {
	switch now := s.load(); {
	case now.keeping == Listed: // nothing reads the summary
	case now == t && t.most() == 1 && (e.listed || was != 0):
		s.latest.reach(at.UnixNano())
		if s.load() != t || e.use.at.Load() < at.UnixNano() { // the use may count no more
			s.mu.Lock()
			defer s.mu.Unlock()
			s.latest.settle(s.load())
		}
	case now != t || was <= s.latest.last.Load():
		s.latest.raise(s)
	}
}

// before says whether the last use was before the given time.
func (u *use) before(at time.Time) bool {
	last := u.at.Load()
	return last != 0 && last < at.UnixNano()
}

// endBefore forgets the last use if it was before the given time.
func (u *use) endBefore(at time.Time) {
	if last := u.at.Load(); last < at.UnixNano() {
		u.at.CompareAndSwap(last, 0)
	}
}

// Unuse takes back Use with the same arguments, if it was the last use of an adapter that the
// engine does not list.
func (s *Set) Unuse(name string, at time.Time) {
	if e := s.load().entries[name]; e != nil && !e.listed && e.use.at.CompareAndSwap(at.UnixNano(), 0) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.latest.settle(s.load())
	}
}

// note moves the time of the last use on. note returns the time before.
func (u *use) note(at time.Time) (was int64, moved bool) {
	for now := at.UnixNano(); ; {
		was = u.at.Load()
		if was >= now {
			return was, false
		}
		if u.at.CompareAndSwap(was, now) {
			return was, true
		}
	}
}

// Scrape reads a metrics page that the engine has answered at now. The page has times of the
// engine's own clock. Only a time that is later than the adapter's time on the pages before is a
// use, unless the engine's clock was set back.
func (s *Set) Scrape(page []byte, now time.Time) {
	s.Clamp(now)
	s.mu.Lock()
	t := s.load()
	used, slots, newest := t.read(page)
	if s.clock.stepped(newest) {
		s.clock = clock{}
		for _, e := range t.order {
			e.use.stamp = 0
		}
		used, _, _ = t.read(page)
	}
	risen := 0.0
	for e, before := range used {
		if before > 0 {
			risen = max(risen, e.use.stamp)
		}
	}
	s.clock.read(newest, risen, now)
	for e := range used {
		e.use.note(s.clock.time(e.use.stamp, now))
	}
	if len(used) > 0 {
		s.latest.settle(t)
	}
	s.mu.Unlock()
	if slots > 0 {
		s.SetSlots(slots)
	}
}

// read takes the times of a page into the stamps. used has the stamps before of the entries whose
// stamps are later now. The caller holds Set.mu.
func (t *table) read(page []byte) (used map[*entry]float64, slots int, newest float64) {
	slots, newest = enginemetrics.Adapters(page, func(name []byte, at float64) {
		e := t.entries[string(name)]
		if e == nil || at <= e.use.stamp {
			return
		}
		if used == nil {
			used = map[*entry]float64{}
		}
		if _, again := used[e]; !again {
			used[e] = e.use.stamp
		}
		e.use.stamp = at
	})
	return used, slots, newest
}

// Clamp moves uses that are in the future at now to now, in their order. A step back of this host's
// clock leaves such uses. Clamp leaves alone what is at most five minutes ahead, because the caller
// may have read now a while ago.
func (s *Set) Clamp(now time.Time) {
	limit := now.Add(clockWindow).UnixNano()
	ahead := func(e *entry) bool { return e.use.at.Load() > limit }
	if !slices.ContainsFunc(s.load().order, ahead) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.load()
	var early []*use
	var times []int64 // of the early uses
	for _, e := range t.order {
		if at := e.use.at.Load(); at > limit {
			early, times = append(early, e.use), append(times, at)
		}
	}
	inOrder := slices.Sorted(slices.Values(times))
	for i, u := range early {
		upTo, _ := slices.BinarySearch(inOrder, times[i]+1)
		u.at.CompareAndSwap(times[i], now.UnixNano()-int64(len(times)-upTo))
	}
	s.latest.settle(t)
}

// Forget says that the engine has restarted.
func (s *Set) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock = clock{}
	t := s.load()
	for _, e := range t.order {
		e.use.at.Store(0)
	}
	s.latest.settle(t)
}

// Has says whether the engine lists or may load an adapter with this name.
func (s *Set) Has(name string) bool { return s.load().entries[name] != nil }

// Loaded says whether the engine has loaded an adapter. known is false if that cannot be told.
func (s *Set) Loaded(name string) (loaded, known bool) {
	t := s.load()
	if e := t.entries[name]; e != nil {
		return s.latest.loaded(t, e)
	}
	return false, t.answered
}

// State is what is known of one adapter.
type State struct {
	Adapter
	Listed        bool
	Loaded, Known bool
	Used          time.Time // zero: never
}

// States returns the adapters sorted by name.
func (s *Set) States() []State {
	t := s.load()
	all := make([]State, 0, len(t.order))
	for _, e := range t.order {
		one := State{Adapter: e.Adapter, Listed: e.listed}
		one.Loaded, one.Known = s.latest.loaded(t, e)
		if at := e.use.at.Load(); at != 0 {
			one.Used = time.Unix(0, at)
		}
		all = append(all, one)
	}
	return all
}

// Slots returns how many adapters the engine can use at once; 0: unknown.
func (s *Set) Slots() int { return s.load().slots }
