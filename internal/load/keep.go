package load

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Moved tells whether a router that knows the old load should be told l immediately. A router
// should be told if a figure differs enough from the old figure, or has become known or unknown.
// Moved allocates nothing.
func (l *Load) Moved(old *Load) bool {
	for i := range samples {
		for k := range samples[i].Signals {
			s := &samples[i].Signals[k]
			if s.moved(*s.gauge(l), *s.gauge(old)) {
				return true
			}
		}
	}
	return l.ranksMoved(old)
}

// ranksMoved is Moved for the figures of data-parallel ranks.
func (l *Load) ranksMoved(old *Load) bool {
	if len(l.Ranks) != len(old.Ranks) {
		return true
	}
	signals := samples[engineSample].Signals
	for i := range l.Ranks {
		was := old.Ranks[i].figures()
		for k, g := range l.Ranks[i].figures() {
			if signals[k].moved(*g, *was[k]) {
				return true
			}
		}
	}
	return false
}

func (s *Signal) moved(now, old Gauge) bool {
	if !now.known || !old.known {
		return now.known != old.known
	}
	return s.step > 0 && math.Abs(now.value-old.value) >= max(s.step, s.share*old.value)
}

// Forget makes each group unknown whose sample at now is older than trust.
func (l *Load) Forget(now time.Time, trust time.Duration) {
	for i := range samples {
		s := &samples[i]
		if at := s.at(l); !at.IsZero() && now.Sub(at.Time) > trust {
			*at = Taken{}
			for k := range s.Signals {
				*s.Signals[k].gauge(l) = Gauge{}
			}
			if i == engineSample {
				l.Ranks = nil
			}
		}
	}
}

// Arrived completes a load that has come at now without the ages of all samples. A group with a
// known figure gets the time now, unless the group already has a time. A group without known
// figures gets no time.
func (l *Load) Arrived(now time.Time) {
	for i := range samples {
		s := &samples[i]
		switch at := s.at(l); {
		case !s.known(l):
			*at = Taken{}
		case at.IsZero():
			*at = Taken{now}
		}
	}
}

// Empty says that no figure is known.
func (l *Load) Empty() bool {
	for i := range samples {
		if samples[i].known(l) {
			return false
		}
	}
	return true
}

func (s *Sample) known(l *Load) bool {
	for k := range s.Signals {
		if s.Signals[k].gauge(l).known {
			return true
		}
	}
	return false
}

// Check returns an error for every figure that is out of its bounds.
func (l *Load) Check() error {
	var errs []error
	l.outOfBounds(func(s *Signal, g *Gauge) {
		errs = append(errs, fmt.Errorf("%s %s is not in 0..%g", s.Name, *g, s.Most))
	})
	if len(l.Ranks) > MaxRanks {
		errs = append(errs, fmt.Errorf("ranks has %d entries; at most %d are allowed", len(l.Ranks), MaxRanks))
	}
	return errors.Join(errs...)
}

// Fit makes figures unknown that are out of their bounds.
func (l *Load) Fit() {
	if len(l.Ranks) > MaxRanks {
		l.Ranks = nil
	}
	l.outOfBounds(func(_ *Signal, g *Gauge) { *g = Gauge{} })
}

func (l *Load) outOfBounds(found func(*Signal, *Gauge)) {
	for i := range samples {
		for k := range samples[i].Signals {
			s := &samples[i].Signals[k]
			if g := s.gauge(l); s.outOfBounds(g) {
				found(s, g)
			}
		}
	}
	signals := samples[engineSample].Signals
	for i := range l.Ranks {
		for k, g := range l.Ranks[i].figures() {
			if signals[k].outOfBounds(g) {
				found(&signals[k], g)
			}
		}
	}
}

func (s *Signal) outOfBounds(g *Gauge) bool { return g.known && !(g.value >= 0 && g.value <= s.Most) }
