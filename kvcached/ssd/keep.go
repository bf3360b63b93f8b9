package ssd

import (
	"errors"
	"slices"
)

func wake(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (t *Tier) wakeKeeper()  { wake(t.keep) }
func (t *Tier) wakeReclaim() { wake(t.reclaim) }

// keepLog seals full segments and moves the checkpoint.
func (t *Tier) keepLog() {
	select {
	case <-t.ready: // an earlier checkpoint would end the tail, by which loading finds rows without records
	case <-t.stop.Done():
		return
	}
	for {
		t.sealFull()
		t.log.mu.Lock()
		due := t.log.fresh >= t.o.checkpointBytes || t.log.tombs >= tombsMax
		t.log.mu.Unlock()
		if due {
			t.checkpoint()
		}
		if t.names.due(t.o.now()) {
			t.forgetNames()
		}
		select {
		case <-t.keep:
		case <-t.stop.Done():
			return
		}
	}
}

// sealFull seals the segments that get no more records.
func (t *Tier) sealFull() {
	t.sealMu.Lock()
	defer t.sealMu.Unlock()
	t.log.mu.Lock()
	open := slices.Clone(t.log.open)
	open = slices.DeleteFunc(open, func(s *segment) bool { return !s.full || s.flying > 0 || s.sealed.Load() })
	t.log.mu.Unlock()
	for _, s := range open {
		if err := t.sealSegment(s); err != nil {
			t.writeFailed("seal", err)
		}
		// Sealing is not tried again, because the footer only saves reading all headers.
		s.sealed.Store(true)
		s.table = nil
	}
}

// sealSegment writes the footer of s behind its last record, and frees the rest of the file.
func (t *Tier) sealSegment(s *segment) error {
	n := footerPages(len(s.table))
	b := alignedBytes(int(n) * page)
	encodeFooter(b, s.id, s.salt, s.next, s.table)
	if err := s.f.WriteAt([][]byte{b}, int64(s.next)*page); err != nil {
		return err
	}
	t.stats.written.Add(uint64(len(b)))
	size := int64(s.next+n) * page
	if old := s.size.Load(); size < old {
		if err := s.f.Truncate(size); err != nil {
			return err
		}
		s.size.Store(size)
		t.disk.Add(size - old)
		t.announceSpace()
	}
	return t.datasync(s)
}

// checkpoint makes the rows of all settled records durable and notes the place.
func (t *Tier) checkpoint() bool {
	t.checkpointMu.Lock()
	defer t.checkpointMu.Unlock()
	l := &t.log
	l.mu.Lock()
	c := checkpoint{place: l.settled(), seq: l.seq, segment: l.segment}
	open := slices.Clone(l.open)
	l.fresh, l.tombs = 0, 0
	l.mu.Unlock()
	c.day, c.written = t.budget.state()
	if t.rows.rotten.Load() {
		t.markDamaged(errRow)
	}
	for _, s := range open {
		if s.id <= c.place.segment {
			// A failed sync stays with its segment; reads check every record.
			_ = t.datasync(s)
		}
	}
	batch := t.rows.change()
	batch.check(&c)
	if err := batch.commit(true); err != nil {
		t.writeFailed("checkpoint", err)
		return false
	}
	t.doubt.pass(c.place)
	t.writeProof(&c)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = slices.DeleteFunc(l.open, func(s *segment) bool { return s.id < c.place.segment && s.sealed.Load() })
	t.stats.checkpoints.Add(1)
	return true
}

// shut seals all segments and sets the last checkpoint. No operation is running any more.
func (t *Tier) shut() error {
	if !t.loaded() {
		return nil // the next start begins at the same place as this one
	}
	t.log.mu.Lock()
	if s := t.log.active; s != nil {
		s.full, t.log.active = true, nil
	}
	t.log.mu.Unlock()
	t.sealFull()
	if !t.checkpoint() {
		return errors.New("ssd: the last checkpoint failed; the next start will read the end of the log again")
	}
	return nil
}
