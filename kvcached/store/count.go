package store

import (
	"context"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kvcached/ssd"
)

// countShare is the part of the time that counting may take at most, however often it is asked for.
const countShare = 20

// counting is what was counted last.
type counting struct {
	mu     sync.Mutex
	until  time.Time // it holds
	blocks map[string]int
	swept  time.Time // until then sweepAll does nothing
}

// Count says how many blocks each namespace has, in all tiers. Those whose time is over are removed
// from RAM before, unless that was done less than twenty times as long ago as it takes. What is
// only on SSD is counted by looking through its rows, which takes about a second for a million; it
// is counted again when twenty times as long has passed, or at once after a purge.
func (s *Store) Count(ctx context.Context) (map[string]int, error) {
	s.sweepAll()
	all := map[string]int{}
	for _, u := range s.ramNamespaces() {
		all[u.Namespace] = u.Blocks
	}
	if s.disk == nil {
		return all, nil
	}
	c := &s.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	if begun := time.Now(); begun.After(c.until) {
		blocks, err := s.countDisk(ctx)
		if err != nil {
			return nil, err
		}
		c.blocks, c.until = blocks, time.Now().Add(countShare*time.Since(begun))
	}
	for ns, n := range c.blocks {
		all[ns] += n
	}
	return all, nil
}

// sweepAll removes from RAM all blocks whose time is over.
func (s *Store) sweepAll() {
	c := &s.counting
	c.mu.Lock()
	defer c.mu.Unlock()
	begun := time.Now()
	if begun.Before(c.swept) {
		return
	}
	s.mu.Lock()
	slots := s.tier.Slots()
	s.mu.Unlock()
	for done := uint32(0); done <= slots; done += 8 * atOnce {
		s.sweepSlots(8 * atOnce)
	}
	s.sweepSlots(8 * atOnce) // for one of them ended early, at the table's end
	c.swept = time.Now().Add(countShare * time.Since(begun))
}

// recount makes the next Count count.
func (s *Store) recount() {
	s.counting.mu.Lock()
	s.counting.until, s.counting.swept = time.Time{}, time.Time{}
	s.counting.mu.Unlock()
}

// countDisk counts what SSD has and RAM has not.
func (s *Store) countDisk(ctx context.Context) (map[string]int, error) {
	blocks := map[string]int{}
	for cursor := uint64(0); ; {
		var found []ssd.Info
		next, err := s.disk.Scan(ctx, cursor, func(i ssd.Info) bool {
			found = append(found, i)
			return true
		})
		if err != nil {
			return nil, diskError("counted", 0, err)
		}
		for i := range found {
			if !s.expired(found[i].Expires) && !s.inRAM(&found[i]) {
				blocks[found[i].Namespace]++
			}
		}
		if cursor = next; cursor == 0 {
			return blocks, nil
		}
	}
}

func (s *Store) inRAM(i *ssd.Info) bool {
	h := s.tier.Hash(&i.Addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tier.Find(h, &i.Addr) != 0
}
