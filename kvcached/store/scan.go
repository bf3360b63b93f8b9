package store

import (
	"context"

	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Bits of a cursor that name its tier. The first and the last cursor are zero.
const (
	scanRAM = 1 << 48
	scanSSD = 1 << 49
)

// Scan calls visit with the blocks of one part of a tier and returns the cursor of the next part;
// 0: that was the last part. Begin with cursor 0. A block that exists from the first call to the
// last is visited at least once, and twice if it is in two tiers. There is one exception. Scan
// misses a block that is only on SSD while RAM is visited, if the block then comes to RAM and SSD
// drops it before its part is visited. If visit returns false, next is the cursor of the same part
// again.
func (s *Store) Scan(ctx context.Context, cursor uint64, visit func(Info) bool) (next uint64, err error) {
	if err := ctx.Err(); err != nil {
		return cursor, err
	}
	if s.hidden() {
		return 0, nil
	}
	if cursor == 0 {
		cursor = scanRAM
	}
	var found []Info
	switch {
	case cursor&scanSSD != 0 && s.disk != nil:
		next, found, err = s.diskPart(ctx, cursor)
	case cursor&scanRAM != 0 && cursor&^scanRAM < s.tier.ScanParts():
		next, found, err = s.ramPart(cursor)
	}
	if err != nil {
		return cursor, err
	}
	for _, info := range found {
		if !visit(info) {
			return cursor, nil
		}
	}
	return next, nil
}

func (s *Store) ramPart(cursor uint64) (next uint64, found []Info, err error) {
	found, err = s.bucket(cursor &^ scanRAM)
	switch next = cursor + 1; {
	case next&^scanRAM < s.tier.ScanParts():
	case s.disk != nil:
		next = scanSSD
	default:
		next = 0
	}
	return next, found, err
}

func (s *Store) diskPart(ctx context.Context, cursor uint64) (next uint64, found []Info, err error) {
	next, err = s.disk.Scan(ctx, cursor&^scanSSD, func(i ssd.Info) bool {
		if !s.expired(i.Expires) {
			found = append(found, fromDisk(&i))
		}
		return true
	})
	if next != 0 {
		next |= scanSSD
	}
	return next, found, err
}

// bucket copies the Info of a bucket's blocks.
func (s *Store) bucket(i uint64) (found []Info, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrClosed
	}
	s.tier.Scan(i, func(id ram.ID) {
		if s.expired(s.tier.At(id).Expires) {
			return
		}
		found = append(found, s.all(id))
	})
	return found, nil
}
