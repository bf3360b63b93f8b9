// Package lora follows which LoRA adapters an inference engine has loaded.
//
// An engine lists adapters as models with a parent. vLLM can compute for a fixed number of adapters
// at once, its slots, and keeps the ones used last. vLLM tells the slots, and when it had requests
// for which adapter. SGLang lists the adapters that are in its memory, and no others. Routers add
// the requests that they have sent, and KV events the blocks that an engine has stored.
package lora

import (
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/enginemetrics"
)

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
// use. Has and Loaded take no lock and allocate nothing.
type Set struct {
	table  atomic.Pointer[table]
	mu     sync.Mutex    // held by the methods that change the table or read the engine's metrics
	behind time.Duration // the engine's clock, as far as that is known; see Scrape
	timed  bool          // behind is known
	newest float64       // latest time of a page, in Unix seconds; 0: none
}

// table is what is known of an engine. table is immutable except for the times of use.
type table struct {
	keeping  Keeping
	slots    int // adapters that the engine can use at once; 0: unknown
	answered bool
	entries  map[string]*entry
	order    []*entry // the entries sorted by name
}

// entry is one adapter. Only name and the atomic fields are shared between tables.
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
		t.answered, t.keeping = true, keeping
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
// lists. Expect changes nothing if they are expected already.
func (s *Set) Expect(adapters []Adapter) {
	if s.expects(adapters) {
		return
	}
	s.change(func(t *table) {
		for name, e := range t.entries {
			if !e.listed && !slices.Contains(adapters, e.Adapter) {
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
}

// Use notes that the engine computes for an adapter at the given time. Use ignores other models.
func (s *Set) Use(name string, at time.Time) {
	if e := s.load().entries[name]; e != nil {
		e.use.note(at)
	}
}

// UseBytes is Use for a name in a buffer.
func (s *Set) UseBytes(name []byte, at time.Time) {
	if e := s.load().entries[string(name)]; e != nil {
		e.use.note(at)
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
	if e := s.load().entries[name]; e != nil && !e.listed {
		e.use.at.CompareAndSwap(at.UnixNano(), 0)
	}
}

// note moves the time of the last use on.
func (u *use) note(at time.Time) {
	for now := at.UnixNano(); ; {
		last := u.at.Load()
		if last >= now || u.at.CompareAndSwap(last, now) {
			return
		}
	}
}

// Scrape reads a metrics page that the engine has answered at now. The page has times of the
// engine's own clock. A time that is new since the last page was shortly before now, so the
// smallest difference that was ever seen of a new time is about how far that clock is behind. Until
// then the clocks count as equal, because the times of an idle engine are old.
func (s *Set) Scrape(page []byte, now time.Time) {
	t := s.load()
	s.mu.Lock()
	slots, newest := enginemetrics.Adapters(page, func(name []byte, at float64) {
		if e := t.entries[string(name)]; e != nil && at > math.Abs(e.use.stamp) {
			e.use.stamp = -at // marked as new
		}
	})
	if behind := now.Sub(unix(newest)); s.newest > 0 && newest > s.newest && (!s.timed || behind < s.behind) {
		s.behind, s.timed = behind, true
	}
	s.newest = max(s.newest, newest)
	for _, e := range t.order {
		if e.use.stamp < 0 {
			e.use.stamp = -e.use.stamp
			at := unix(e.use.stamp).Add(s.behind)
			if at.After(now) {
				at = now
			}
			e.use.note(at)
		}
	}
	s.mu.Unlock()
	if slots > 0 {
		s.SetSlots(slots)
	}
}

// unix returns a time in Unix seconds.
func unix(seconds float64) time.Time {
	whole, part := math.Modf(min(seconds, math.MaxInt32))
	return time.Unix(int64(whole), int64(part*1e9))
}

// Forget says that the engine has restarted.
func (s *Set) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timed, s.behind, s.newest = false, 0, 0
	for _, e := range s.load().order {
		e.use.at.Store(0)
	}
}

// Has says whether the engine lists or may load an adapter with this name.
func (s *Set) Has(name string) bool { return s.load().entries[name] != nil }

// Loaded says whether the engine has loaded an adapter. known is false if that cannot be told.
func (s *Set) Loaded(name string) (loaded, known bool) { return s.load().loaded(name) }

func (t *table) loaded(name string) (loaded, known bool) {
	e := t.entries[name]
	if e == nil {
		return false, t.answered
	}
	at := e.use.at.Load()
	if !e.listed && at == 0 {
		return false, t.answered
	}
	switch {
	case t.keeping == Listed:
		return true, true
	case t.keeping == Unknown || t.slots == 0:
		return at != 0, at != 0 && t.latest(at)
	}
	return t.within(at)
}

// latest says whether no adapter was used after the given time.
func (t *table) latest(at int64) bool {
	for _, e := range t.order {
		if e.use.at.Load() > at {
			return false
		}
	}
	return true
}

// within says whether an adapter with this last use is among the engine's slots. Adapters without a
// known use are behind the others, in an unknown order.
func (t *table) within(at int64) (loaded, known bool) {
	later, candidates := 0, 0
	for _, e := range t.order {
		used := e.use.at.Load()
		if used > at {
			later++
		}
		if e.listed || used != 0 {
			candidates++
		}
	}
	switch {
	case candidates <= t.slots:
		return true, true
	case later >= t.slots:
		return false, true
	}
	return at != 0, at != 0
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
		one.Loaded, one.Known = t.loaded(e.Name)
		if at := e.use.at.Load(); at != 0 {
			one.Used = time.Unix(0, at)
		}
		all = append(all, one)
	}
	return all
}

// Slots returns how many adapters the engine can use at once; 0: unknown.
func (s *Set) Slots() int { return s.load().slots }
