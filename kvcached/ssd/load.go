package ssd

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// rowFound returns the row of a, if its record may exist. It is used while the index is being
// loaded.
func (t *Tier) rowFound(a *block.Addr) (row, bool, error) {
	r, ok, err := t.rows.get(a)
	if errors.Is(err, errRow) {
		return row{}, false, nil
	}
	if err != nil || !ok {
		return row{}, false, err
	}
	return r, t.stands(&r), nil
}

// stands tells whether the record of a row may exist. Its segment may be missing or cut off.
func (t *Tier) stands(r *row) bool {
	t.tailMu.RLock()
	defer t.tailMu.RUnlock()
	s := t.segs.get(r.segment)
	e := r.entry(0)
	return t.tail.vouches(r) && s != nil && int64(r.page)*page+e.bytes() <= s.size.Load()
}

// loadRows fills the index. Addresses that were written, deleted or moved since Open began have an
// entry already, live or dead.
func (t *Tier) loadRows() {
	begun := t.o.now()
	err := t.rows.each([]byte{rowRecord}, []byte{rowRecord + 1}, func(key, value []byte) bool {
		if a, ok := parseAddr(key[1:]); ok {
			t.loadRow(&a, value)
		}
		return t.stop.Err() == nil
	})
	if t.stop.Err() != nil {
		return
	}
	if err != nil {
		// Rows that cannot be read are misses.
		t.stats.readErrors.Add(1)
		t.o.Logger.Error("ssd: the index is not complete: rows could not be read", "err", plainError{err})
		if damaged(err) {
			t.markDamaged(err)
		}
	}
	if err == nil {
		t.sweepNames()
	}
	t.load.part.Store(1 << 16)
	close(t.ready)
	t.index.sweep()
	t.tailMu.Lock()
	t.tail = nil
	t.tailMu.Unlock()
	t.checkpoint()
	level := slog.LevelInfo
	if t.stats.torn.Load()+t.stats.lost.Load() > 0 || len(t.load.gone) > 0 {
		level = slog.LevelWarn
	}
	t.o.Logger.Log(t.stop, level, "ssd: index loaded", "records", t.load.records.Load(),
		"took", t.o.now().Sub(begun).Round(time.Millisecond), "torn", t.stats.torn.Load(), "lost", t.stats.lost.Load(),
		"missing_segments", len(t.load.gone))
	t.load.there = nil
	t.wakeReclaim()
}

func (t *Tier) loadRow(a *block.Addr, value []byte) {
	var r row
	if err := r.decode(value); err != nil {
		t.stats.corrupt.Add(1)
		t.dropRow(a, nil)
		return
	}
	t.load.part.Store(int64(binary.BigEndian.Uint16(a.Digest[:])))
	if !t.stands(&r) {
		if l := &t.load; l.there != nil && !l.there[r.segment] && len(l.gone) < missingMax {
			l.gone[r.segment] = true // removed by hand, as reclaim removes a segment after its rows
		}
		t.dropRow(a, &r)
		return
	}
	e := r.entry(t.index.hash(a))
	e.space = t.usage.add(a.Model, t.names.get(a.Model), e.bytes())
	if _, done := t.index.put(e, func(old *entry) bool { return old.state != 0 }); !done {
		t.usage.sub(e.space, e.bytes())
		return
	}
	t.account(&e, 1)
	t.load.records.Add(1)
}

// dropRow drops the row of a, whose record is missing, unless the row has changed since seen. A nil
// seen is a row that does not parse.
func (t *Tier) dropRow(a *block.Addr, seen *row) {
	hash := t.index.hash(a)
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	now, ok, err := t.rows.get(a)
	c := t.rows.change()
	switch {
	case seen == nil && errors.Is(err, errRow):
		c.drop(a)
	case seen != nil && err == nil && ok && now.seq == seen.seq && now.place == seen.place:
		if t.segs.get(seen.segment) == nil {
			t.stats.lost.Add(1)
			t.warnDamaged("ssd: a block that the index names is lost with its segment", seen.place, errMissing)
		} else {
			t.stats.torn.Add(1)
			t.warnDamaged("ssd: a record that the index names is damaged, cut off or was never written; its block "+
				"is dropped",
				seen.place, errRecord)
		}
		c.bury(a, now.seq, t.end())
	default:
		c.discard()
		return
	}
	if err := c.commit(false); err != nil {
		t.writeFailed("row", err)
	}
}

// The first warnedFirst damaged records are logged, then every warnedEvery-th.
const warnedFirst, warnedEvery = 10, 1000

// warnDamaged logs the place of a record that a start drops.
func (t *Tier) warnDamaged(what string, p place, why error) {
	if n := t.warned.Add(1); n <= warnedFirst || n%warnedEvery == 0 {
		t.o.Logger.Warn(what, "file", segmentName(t.o.Dir, p.segment), "segment", p.segment, "offset",
			int64(p.page)*page, "err", why, "so_far", n)
	}
}
