package fleet

import "time"

// modelMemory is how long a model stays known after the last node of etcd that served it has left.
// The node's agent may come back. Until then the answer to a request is "not now", not "no such
// model".
const modelMemory = 10 * time.Minute

// maxDeparted bounds the departed models kept in memory. A departed model beyond the bound is
// forgotten at once.
const maxDeparted = 4096

// rememberDeparted keeps a departed model of etcd's nodes in s for modelMemory. rememberDeparted
// does not keep a model that has lost its backend in the configuration, that its engine no longer
// lists, or that was an adapter by the settings only.
func (f *Fleet) rememberDeparted(s *Snapshot, now time.Time) {
	if old := f.snap.Load(); old != nil {
		for _, m := range old.models {
			if s.names[m.Name] == nil && m.announced && len(f.departed) < maxDeparted {
				f.departed[m.Name] = now
			}
		}
	}
	for name, since := range f.departed {
		if m := s.names[name]; m != nil && len(m.Nodes)+len(m.Prefill) > 0 || now.Sub(since) >= modelMemory {
			delete(f.departed, name)
		} else {
			s.remember(name)
		}
	}
}

// sweepDeparted makes a new snapshot when a departed model's time is over.
func (f *Fleet) sweepDeparted(now time.Time) {
	for _, since := range f.departed {
		f.dirty = f.dirty || now.Sub(since) >= modelMemory
	}
}

// partial says whether a source has never yet named its models: an unchecked backend, an unresolved
// DNS name, or etcd. until is the end of the wait for the last unchecked backend.
func (f *Fleet) partial() (partial bool, until time.Time) {
	silent := func(url string) {
		partial = true
		if t := f.static.since[url].Add(f.o.FirstWord); t.After(until) {
			until = t
		}
	}
	for _, m := range f.members {
		if m.node.Source == Static && !m.heard {
			silent(m.backend.URL)
		}
	}
	for _, b := range f.static.backends {
		if name := b.dnsName(); name != "" && b.Model == "" && len(f.static.resolved[name]) == 0 {
			silent(b.URL)
		}
	}
	return partial || !f.etcd.heard, until
}
