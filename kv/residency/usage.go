package residency

import (
	"cmp"
	"slices"
	"strings"
)

// usage counts an engine's blocks for each namespace and adapter. The daemon's tiers have a nil
// usage, whose methods do nothing.
type usage struct {
	adapters map[string]uint8 // numbers from 1
	names    []string         // by number
	counts   map[usageKey]*UsageCounts
	pins     int64
}

type usageKey struct {
	namespace uint16
	adapter   uint8
}

// UsageCounts are numbers of blocks. A block in two tiers counts in both.
type UsageCounts struct {
	Blocks                     int64
	Device, Host, Disk, Shared int64
	Pinned                     int64
}

// EngineUsage counts an engine's blocks of one namespace, which names model and rank, and of one
// adapter.
type EngineUsage struct {
	Engine, Namespace string
	Adapter           string // empty: none
	UsageCounts
}

// OtherAdapters stands for the surplus adapters of an engine.
const OtherAdapters = "(others)"

func newUsage() *usage {
	return &usage{adapters: map[string]uint8{}, names: []string{""}, counts: map[usageKey]*UsageCounts{}}
}

// adapter returns the number of an adapter. Adapters beyond maxAdapters share the last number.
func (u *usage) adapter(name string) uint8 {
	if name == "" {
		return 0
	}
	n, ok := u.adapters[name]
	switch {
	case ok:
	case len(u.names) <= maxAdapters:
		if n = uint8(len(u.names)); n == maxAdapters {
			name = OtherAdapters
		}
		name = strings.Clone(name)
		u.names = append(u.names, name)
		u.adapters[name] = n
	default:
		n = maxAdapters
	}
	return n
}

func (u *usage) pinned() int64 {
	if u == nil {
		return 0
	}
	return u.pins
}

// count adds a block in its present state to its engine's counts, or subtracts it. The caller holds
// x.mu.
func (x *Index) count(h *holder, e *entry, by int64) {
	u := h.usage
	if u == nil {
		return
	}
	k := usageKey{e.namespace, e.adapter()}
	c := u.counts[k]
	if c == nil {
		c = &UsageCounts{}
		u.counts[k] = c
	}
	c.Blocks += by
	for _, t := range [...]struct {
		tier Tiers
		to   *int64
	}{{Device, &c.Device}, {Host, &c.Host}, {Disk, &c.Disk}, {Shared, &c.Shared}, {Pinned, &c.Pinned}} {
		if e.tiers&t.tier != 0 {
			*t.to += by
		}
	}
	if e.tiers&Pinned != 0 {
		u.pins += by
		x.stats.Pinned += by
	}
	if c.Blocks == 0 {
		delete(u.counts, k)
	}
}

// Usage returns the engines' reported blocks by engine, namespace and adapter. Usage returns at
// most limit rows, those with the most blocks.
func (x *Index) Usage(limit int) []EngineUsage {
	x.mu.Lock()
	var all []EngineUsage
	for _, h := range x.engines {
		for k, c := range h.usage.counts {
			all = append(all, EngineUsage{h.Engine, x.namespaces.list[k.namespace].text, h.usage.names[k.adapter], *c})
		}
	}
	x.mu.Unlock()
	slices.SortFunc(all, func(a, b EngineUsage) int {
		return cmp.Or(cmp.Compare(b.Blocks, a.Blocks), strings.Compare(a.Engine, b.Engine), strings.Compare(a.Namespace,
			b.Namespace), strings.Compare(a.Adapter, b.Adapter))
	})
	return all[:min(limit, len(all))]
}
