package ssd

import "sync/atomic"

type counters struct {
	reads, readBytes, misses, corrupt, torn, lost, readErrors       atomic.Uint64
	writes, payload, written, moved, movedBytes, syncs, checkpoints atomic.Uint64
	deletes, evicted, evictedBytes, expired, reclaimed, reused      atomic.Uint64
	overBudget, overQuota, waits, resets                            atomic.Uint64
	writeErrors, noSpace, readOnly, failures, fullWrites            atomic.Uint64
}

// Stats are counters since Open, unless they say otherwise.
type Stats struct {
	Reads         uint64 // blocks read
	ReadBytes     uint64 // of their payloads
	Misses        uint64 // reads of blocks that are not there
	Corrupt       uint64 // records found damaged and dropped
	Torn          uint64 // records that a crash left unfinished, dropped at start
	Lost          uint64 // rows dropped at start as their segment is gone
	Resets        uint64 // starts that dropped all blocks because the rows were damaged
	ReadErrors    uint64 // reads that the disk failed
	Writes        uint64 // blocks written
	PayloadBytes  uint64 // of their payloads
	WrittenBytes  uint64 // to segments, reclaim's copies and footers included
	RowBytes      uint64 // written by Pebble: its log, flushes and compactions
	Moved         uint64 // records that reclaim copied
	MovedBytes    uint64 // of them, headers included
	Syncs         uint64 // fdatasync of segments
	Checkpoints   uint64
	Deletes       uint64 // blocks deleted
	Evicted       uint64 // blocks dropped by reclaim
	EvictedBytes  uint64 // of them, headers included
	Expired       uint64 // of Evicted, those that had expired
	Reclaimed     uint64 // segments deleted
	Reused        uint64 // segments made in the file of a deleted one
	OverBudget    uint64 // writes refused by the daily budget
	OverQuota     uint64 // writes refused because their account has all that it may have
	Waits         uint64 // times that a write waited for reclaim
	Squeezes      uint64 // times that the filesystem had less room than the cap
	WriteErrors   uint64 // failed writes, syncs and the like, without the next two
	NoSpaceErrors uint64 // of those, with ENOSPC
	ReadOnly      uint64 // of those, with EROFS

	Cap          int64 // bytes that all files may have together
	Records      int64 // now, in the index
	IndexBytes   int64 // memory of the index, now
	Segments     int64 // files, now
	SegmentBytes int64 // their sizes and those of files kept for new ones, now
	SegmentLimit int64 // their limit while the filesystem has less room than the cap, now; 0: none
	RowFileBytes int64 // size of Pebble's files, now
	LiveBytes    int64 // of SegmentBytes, those of records in the index, now
	WrittenToday int64 // bytes, since midnight UTC
}

// Stats returns a snapshot; counters are read one after the other.
func (t *Tier) Stats() Stats {
	c := &t.stats
	s := Stats{Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(), Misses: c.misses.Load(), Corrupt: c.corrupt.Load(),
		Torn: c.torn.Load(),
		Lost: c.lost.Load(), ReadErrors: c.readErrors.Load(), Writes: c.writes.Load(), PayloadBytes: c.payload.Load(),
		WrittenBytes: c.written.Load(), Moved: c.moved.Load(), MovedBytes: c.movedBytes.Load(), Syncs: c.syncs.Load(),
		Checkpoints: c.checkpoints.Load(), Deletes: c.deletes.Load(), Evicted: c.evicted.Load(),
		EvictedBytes: c.evictedBytes.Load(),
		Expired:      c.expired.Load(), Reclaimed: c.reclaimed.Load(), Reused: c.reused.Load(),
		OverBudget: c.overBudget.Load(), OverQuota: c.overQuota.Load(), Waits: c.waits.Load(),
		Resets:      c.resets.Load(),
		WriteErrors: c.writeErrors.Load(), NoSpaceErrors: c.noSpace.Load(), ReadOnly: c.readOnly.Load(),
		SegmentBytes: t.disk.Load(), Cap: t.o.Cap,
		SegmentLimit: t.squeeze.limit.Load(), Squeezes: t.squeeze.times.Load()}
	s.Records, s.IndexBytes = t.index.size()
	for _, seg := range t.segs.all() {
		s.Segments++
		s.LiveBytes += seg.live.Load()
	}
	_, s.WrittenToday = t.budget.state()
	if t.users.enter() {
		defer t.users.leave()
		s.RowFileBytes = t.rows.usage()
		s.RowBytes = t.rows.written()
	}
	return s
}

// Progress is how far the index is loaded.
type Progress struct {
	Records  int64
	Fraction float64 // 1: all
}

type progress struct {
	records, part atomic.Int64
	missing       int // segments that Open has missed
}

// Progress tells how far the index is loaded.
func (t *Tier) Progress() Progress {
	return Progress{t.load.records.Load(), float64(t.load.part.Load()) / (1 << 16)}
}
