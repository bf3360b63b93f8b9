package fleet

import "time"

// modelMemory is how long a model stays known that the last node of etcd has left: its agent may
// come back, and until then the answer is "not now", not "no such model".
const modelMemory = 10 * time.Minute

// maxDeparted bounds the models remembered so; further ones are forgotten at once.
const maxDeparted = 4096

// rememberDeparted keeps the models of etcd's nodes in s for a while after the last of these has
// left. A backend that the configuration no longer names, and an engine that no longer lists a
// model, mean it.
func (f *Fleet) rememberDeparted(s *Snapshot, now time.Time) {
	if old := f.snap.Load(); old != nil {
		for _, m := range old.models {
			if s.names[m.Name] == nil && m.announced() && len(f.departed) < maxDeparted {
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

// sweepDeparted makes a new snapshot when a model has been gone for long enough.
func (f *Fleet) sweepDeparted(now time.Time) {
	for _, since := range f.departed {
		f.dirty = f.dirty || now.Sub(since) >= modelMemory
	}
}

// announced tells whether a node that announces itself serves the model.
func (m *ModelView) announced() bool {
	for _, nodes := range [][]*Node{m.Nodes, m.Prefill} {
		for _, n := range nodes {
			if n.Source == Etcd {
				return true
			}
		}
	}
	return false
}

// partial tells whether something has never yet said what it serves: a backend that was never
// checked with success, a name that was never resolved, or etcd. Until is how long the last such
// backend is waited for.
func (f *Fleet) partial() (partial bool, until time.Time) {
	silent := func(url string) {
		partial = true
		if t := f.static.since[url].Add(f.opts.FirstWord); t.After(until) {
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
