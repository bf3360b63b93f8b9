package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/ssd"
)

// countShare limits counting: at most one part in countShare of the time is spent on it.
const countShare = 20

// counting is the result of the last count. The caller that has the turn owns all fields but
// purges.
type counting struct {
	turn   chan struct{}  // has one element while a caller counts
	purges atomic.Uint64  // purges that have ended
	asOf   uint64         // purges when the last count began; a later purge makes the rest invalid
	until  time.Time      // blocks is valid until then
	blocks map[string]int // blocks that are only on SSD
	swept  time.Time      // sweepAll does nothing until then
}

// Count returns the number of blocks of each namespace in all tiers. Expired blocks are first
// removed from RAM. The removal is left out for twenty times its own duration. Blocks that are only
// on SSD are counted by a scan of the SSD index, which takes about a second for a million blocks.
// The count of blocks on SSD is reused for twenty times its duration, or until a purge. The result
// is empty while the store is hidden. One caller counts at a time; others wait as long as ctx
// lasts.
func (s *Store) Count(ctx context.Context) (map[string]int, error) {
	all := map[string]int{}
	if s.hidden() {
		return all, nil
	}
	c := &s.counting
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if purges := c.purges.Load(); purges != c.asOf {
		c.asOf, c.until, c.swept = purges, time.Time{}, time.Time{}
	}
	s.sweepAll()
	for _, u := range s.ramNamespaces() {
		all[u.Namespace] = u.Blocks
	}
	if s.disk == nil {
		return all, nil
	}
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

// sweepAll removes all expired blocks from RAM. The caller has the turn to count.
func (s *Store) sweepAll() {
	begun := time.Now()
	if begun.Before(s.counting.swept) {
		return
	}
	s.mu.Lock()
	slots := s.tier.Slots()
	s.mu.Unlock()
	for done := uint32(0); done <= slots; done += 8 * atOnce {
		s.sweepSlots(8 * atOnce)
	}
	s.sweepSlots(8 * atOnce) // one call above ended early, at the end of the table
	s.counting.swept = time.Now().Add(countShare * time.Since(begun))
}

// recount makes the next Count ignore the last result.
func (s *Store) recount() { s.counting.purges.Add(1) }

// countDisk counts the blocks that are on SSD and not in RAM.
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
