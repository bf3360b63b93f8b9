package holdings

import (
	"maps"
	"slices"
	"strings"
)

// Trouble is a daemon whose residency stream cannot be read.
type Trouble struct {
	Cache   string // id, or address of Options.Static
	Setting string // that names the daemon; empty: etcd does
	Why     string
	Heard   bool // the daemon has answered before, so its address is right
}

// Troubles returns the daemons whose residency stream cannot be read, in the order of their ids.
func (m *Map) Troubles() (all []Trouble) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.caches {
		if why := c.trouble.Load(); why != nil {
			all = append(all, Trouble{c.id, c.setting, *why, c.resyncs.Load() > 0})
		}
	}
	slices.SortFunc(all, func(a, b Trouble) int { return strings.Compare(a.Cache, b.Cache) })
	return all
}

// Roomless are the engines and blocks of a daemon's host without a place in the index.
type Roomless struct {
	Cache   string   // as in Trouble
	Engines []string // nodes of engines that report their blocks
	Blocks  bool     // the daemon has blocks of a configuration without a place
}

// Roomless returns the daemons whose hosts have something without a place in the index, in the
// order of their ids.
func (m *Map) Roomless() (all []Roomless) {
	m.mu.Lock()
	defer m.mu.Unlock()
	add := func(c *cache) {
		if len(c.roomless) > 0 || c.crowded {
			engines := slices.Sorted(maps.Values(c.roomless))
			all = append(all, Roomless{c.id, engines, c.crowded})
		}
	}
	for _, c := range m.caches {
		add(c)
	}
	if m.local != nil {
		add(m.local)
	}
	slices.SortFunc(all, func(a, b Roomless) int { return strings.Compare(a.Cache, b.Cache) })
	return all
}

// Knows says whether a followed daemon has an address by which nodes name it.
func (m *Map) Knows(kvAddress string) bool {
	_, known := m.view.Load().byAddress[kvAddress]
	return known
}

// Addresses returns the addresses by which nodes may name the followed daemons.
func (m *Map) Addresses() []string { return slices.Sorted(maps.Keys(m.view.Load().byAddress)) }

// Has says whether the daemon of an address has blocks of a model.
func (m *Map) Has(kvAddress, model string) bool {
	v := m.view.Load()
	at, known := v.byAddress[kvAddress]
	if !known {
		return false
	}
	_, has := v.caches[at].stock.Load().models[nameOf(model)]
	return has
}

// Contested says whether blocks of a model do not count for a node at the daemon of an address: its
// engine has not said what it reads, and the daemon has the model in several configurations.
func (m *Map) Contested(kvAddress, node, model string) bool {
	v := m.view.Load()
	at, known := v.byAddress[kvAddress]
	if !known {
		return false
	}
	s := v.caches[at].stock.Load()
	_, says := s.readers[node]
	only, has := s.models[nameOf(model)]
	return !says && has && only == several
}

// Readers returns the nodes whose engines have said what they read at the daemon of an address.
func (m *Map) Readers(kvAddress string) []string {
	v := m.view.Load()
	at, known := v.byAddress[kvAddress]
	if !known {
		return nil
	}
	return slices.Sorted(maps.Keys(v.caches[at].stock.Load().readers))
}
