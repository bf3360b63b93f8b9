package ssd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"syscall"
)

// log hands out places. Records are appended to the active segment; full segments wait to be
// sealed.
type log struct {
	mu      sync.Mutex
	active  *segment // nil: none yet
	flights map[*flight]struct{}
	seq     uint64        // last sequence number
	segment uint32        // number of the next segment
	open    []*segment    // segments that lie at least partly behind the checkpoint, oldest first
	fresh   int64         // bytes appended since the last checkpoint began
	tombs   int           // tombstones written since then
	space   chan struct{} // closed when disk space becomes free
}

// flight is a record that is being written. The checkpoint does not pass it.
type flight struct {
	place
	seg   *segment
	pages uint32
	seq   uint64
}

func sortSegments(list []*segment) {
	slices.SortFunc(list, func(a, b *segment) int { return int(int64(a.id) - int64(b.id)) })
}

// fits tells whether a record of n pages, with its part of the footer, fits into s.
func (s *segment) fits(n uint32) bool {
	return !s.full && !s.failed.Load() &&
		uint64(s.next)+uint64(n)+uint64(footerPages(len(s.table)+1)) <= uint64(s.pageCount())
}

// allocate gives n pages to a record of a locked address. moved says that reclaim calls it; reclaim
// may use the last free segment. A sequence number of 0 gets the next one. errNoSpace: reclaim has
// to free a segment first.
func (t *Tier) allocate(n uint32, e tableEntry, moved bool) (*flight, error) {
	l := &t.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if !moved && t.withheld() {
		t.wakeReclaim()
		return nil, errNoSpace
	}
	if l.active == nil || !l.active.fits(n) {
		if err := t.rotate(moved, n); err != nil {
			return nil, err
		}
		if !l.active.fits(n) {
			return nil, ErrTooLarge
		}
	}
	s := l.active
	if e.seq == 0 {
		l.seq++
		e.seq = l.seq
	}
	e.page = s.next
	f := &flight{place: place{s.id, s.next}, seg: s, pages: n, seq: e.seq}
	s.next += n
	s.flying++
	s.table = append(s.table, e)
	s.refs.Add(1)
	l.flights[f] = struct{}{}
	if l.fresh += int64(n) * page; l.fresh >= t.o.checkpointBytes {
		t.wakeKeeper()
	}
	return f, nil
}

// withheld tells whether the active segment is kept for reclaim; log.mu is held.
func (t *Tier) withheld() bool {
	s := t.log.active
	return s != nil && s.spare && !t.roomFor(t.segmentSize(), true)
}

// tombsMax is how many tombstones cause a checkpoint, which clears them.
const tombsMax = 1 << 16

// rotate makes a new active segment with room for a record of n pages, if the disk cap allows it.
// log.mu is held.
func (t *Tier) rotate(moved bool, n uint32) error {
	l := &t.log
	if l.active != nil {
		l.active.full = true
		l.active = nil
		t.wakeKeeper()
	}
	size := t.sizeFor(n)
	if !t.roomFor(size, moved) {
		t.wakeReclaim()
		return errNoSpace
	}
	if l.segment == 1<<32-1 {
		return errNoSpace
	}
	s, err := t.createSegment(l.segment, size)
	if err == nil || errors.Is(err, fs.ErrExist) { // ErrExist: a file that could not be removed
		l.segment++
	}
	if err != nil {
		t.writeFailed("create", err)
		if errors.Is(err, syscall.ENOSPC) {
			t.full()
			t.wakeReclaim()
			return errNoSpace
		}
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.segs.add(s)
	s.spare = moved
	l.active = s
	l.open = append(l.open, s)
	if !t.roomFor(t.segmentSize(), false) {
		t.wakeReclaim()
	}
	return nil
}

// land ends a flight. If written is set, the record is on disk and has its row and its entry.
// Otherwise the write failed: the footer leaves out the record, and a checkpoint that passes it
// follows at once.
func (t *Tier) land(f *flight, written bool) {
	l := &t.log
	l.mu.Lock()
	if !written {
		f.seg.table = slices.DeleteFunc(f.seg.table, func(e tableEntry) bool { return e.page == f.page })
		l.fresh = t.o.checkpointBytes
	}
	delete(l.flights, f)
	f.seg.flying--
	due := f.seg.full && f.seg.flying == 0 || !written
	l.mu.Unlock()
	if due {
		t.wakeKeeper()
	}
	t.release(f.seg)
}

// end returns the place behind all records that have one.
func (t *Tier) end() place {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	return t.log.end()
}

func (l *log) end() place {
	if l.active == nil {
		return place{l.segment, 0}
	}
	return place{l.active.id, l.active.next}
}

// settled returns the place before which no record is being written. log.mu is held.
func (l *log) settled() place {
	p := l.end()
	for f := range l.flights {
		if f.place.before(p) {
			p = f.place
		}
	}
	return p
}

// dug counts written tombstones.
func (t *Tier) dug(n int) {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	if t.log.tombs += n; t.log.tombs >= tombsMax {
		t.wakeKeeper()
	}
}

// announceSpace wakes the writers that wait for space.
func (t *Tier) announceSpace() {
	t.log.mu.Lock()
	defer t.log.mu.Unlock()
	close(t.log.space)
	t.log.space = make(chan struct{})
}

// awaitSpace waits until a record of n pages may fit. ErrReadOnly: the rows cannot be written any
// more, so reclaim frees nothing.
func (t *Tier) awaitSpace(ctx context.Context, n uint32) error {
	for {
		t.log.mu.Lock()
		space := t.log.space
		withheld := t.withheld()
		fits := t.log.active != nil && t.log.active.fits(n)
		t.log.mu.Unlock()
		size := t.sizeFor(n)
		if !withheld && (fits || t.roomFor(size, false)) {
			return nil
		}
		if t.squeeze.hopeless.Load() && !t.rows.broken.Load() {
			return fmt.Errorf("%w: %w: %s has no room, and no segment can be given up", ErrIO, syscall.ENOSPC, t.o.Dir)
		}
		t.squeeze.want(size)
		t.wakeReclaim()
		t.stats.waits.Add(1)
		select {
		case <-space:
		case <-t.rows.died:
			return ErrReadOnly
		case <-t.closing:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
