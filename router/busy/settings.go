package busy

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Settings holds the thresholds of all models. A limit that was set for a model by Set counts
// before the policy's. A model with a policy of its own has the limits of that policy, and any
// other model those of the fleet's policy. The zero Settings has no limits. Settings is safe
// for concurrent use. A nil Settings has no limits, and only Of may be called.
type Settings struct {
	table atomic.Pointer[table] // nil: no limit is set

	mu  sync.Mutex            // guards the following, from which table is made
	all Thresholds            // of the fleet's policy
	own map[string]Thresholds // of the models' own policies
	set map[string]Thresholds // by model
}

// table is an immutable summary of Settings.
type table struct {
	all    *Thresholds            // of the models that are not in models; nil: no limit
	models map[string]*Thresholds // a nil element: no limit
}

// Of returns the thresholds of a model, or nil if none is set. Of allocates nothing.
func (s *Settings) Of(model string) *Thresholds {
	if s == nil {
		return nil
	}
	t := s.table.Load()
	if t == nil {
		return nil
	}
	if own, ok := t.models[model]; ok {
		return own
	}
	return t.all
}

// SetPolicy puts the thresholds of the fleet's policy in force, in place of those before.
func (s *Settings) SetPolicy(all Thresholds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all = all
	s.publish()
}

// SetModels puts the thresholds of the models' own policies in force, in place of those before.
// models has every model with a policy of its own, and may not change afterwards.
func (s *Settings) SetModels(models map[string]Thresholds) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = models
	s.publish()
}

// Set sets the limits of t that are not nil for a model, and returns the model's thresholds.
func (s *Settings) Set(model string, t Thresholds) Thresholds {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !t.IsZero() {
		if s.set == nil {
			s.set = map[string]Thresholds{}
		}
		s.set[model] = s.set[model].over(t)
		s.publish()
	}
	return s.of(model)
}

// Given returns the limits that Set has set for a model.
func (s *Settings) Given(model string) Thresholds {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.set[model]
}

// Unset removes the limits that Set has set for a model, and returns the model's thresholds: those
// of the policy.
func (s *Settings) Unset(model string) Thresholds {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, set := s.set[model]; set {
		delete(s.set, model)
		s.publish()
	}
	return s.of(model)
}

// of returns a model's thresholds.
func (s *Settings) of(model string) Thresholds {
	if in := s.Of(model); in != nil {
		return *in
	}
	return Thresholds{}
}

// publish makes the table. The caller holds mu.
func (s *Settings) publish() {
	t := &table{all: published(s.all), models: map[string]*Thresholds{}}
	for name, own := range s.own {
		t.models[name] = published(own)
	}
	for name, set := range s.set {
		policy, own := s.own[name]
		if !own {
			policy = s.all
		}
		t.models[name] = published(policy.over(set))
	}
	if t.all == nil {
		maps.DeleteFunc(t.models, func(_ string, own *Thresholds) bool { return own == nil })
		if len(t.models) == 0 {
			t = nil
		}
	}
	s.table.Store(t)
}

// published returns t for a table.
func published(t Thresholds) *Thresholds {
	if t.IsZero() {
		return nil
	}
	return &t
}
