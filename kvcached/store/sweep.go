package store

import (
	"slices"
	"time"
)

// Pace of the sweep. Each tick sweeps a part of the table, at least sweepLeast slots, so that
// sweepTicks ticks cover the whole table.
const (
	sweepEvery = time.Second
	sweepTicks = 16
	sweepLeast = 4096
)

// sweep removes expired blocks and pins until the store closes.
func (s *Store) sweep() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-tick.C:
			s.sweepSome()
		}
	}
}

// warmAddrs is the number of uses in RAM that SSD is told about at a time.
const warmAddrs = 1024

func (s *Store) sweepSome() {
	s.mu.Lock()
	s.tier.EndPins(s.o.Now())
	s.churn.tick()
	left := max(s.tier.Slots()/sweepTicks, sweepLeast)
	warm := slices.Clone(s.warm)
	s.warm = s.warm[:0]
	s.mu.Unlock()
	if len(warm) > 0 {
		s.disk.Touch(warm...)
	}
	for left > 0 {
		n := min(left, 8*atOnce)
		s.sweepSlots(n)
		left -= n
	}
}

func (s *Store) sweepSlots(n uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.o.Now()
	for ; n > 0; n-- {
		if s.swept++; s.swept >= s.tier.Slots() {
			s.swept = 0
			return
		}
		id := s.tier.Block(s.swept)
		if id == 0 {
			continue
		}
		if at := s.tier.At(id).Expires; at != 0 && at <= now {
			s.remove(id)
			s.counts.Expired++
		}
	}
}
