package ssd

import "sync/atomic"

type counters struct {
	reads, readBytes, misses, corrupt, torn, lost, readErrors       atomic.Uint64
	writes, payload, written, moved, movedBytes, syncs, checkpoints atomic.Uint64
	deletes, evicted, evictedBytes, expired, reclaimed, reused      atomic.Uint64
	overBudget, overQuota, waits, resets                            atomic.Uint64
	writeErrors, noSpace, readOnly, failures, fullWrites            atomic.Uint64
}

// Stats are counters since Open, except where a comment says otherwise.
type Stats struct {
	Reads         uint64 // blocks read
	ReadBytes     uint64 // bytes of their payloads
	Misses        uint64 // reads of missing blocks
	Corrupt       uint64 // records found damaged and dropped
	Torn          uint64 // records that a crash left unfinished, dropped at start
	Lost          uint64 // rows dropped at the start because their segment was gone
	Resets        uint64 // starts that dropped all blocks because the rows were damaged
	ReadErrors    uint64 // reads that failed at the disk
	Writes        uint64 // blocks written
	PayloadBytes  uint64 // bytes of their payloads
	WrittenBytes  uint64 // bytes written to segments, with reclaim's copies and footers
	RowBytes      uint64 // written by Pebble: its log, flushes and compactions
	Moved         uint64 // records that reclaim copied
	MovedBytes    uint64 // bytes of those, with headers
	Syncs         uint64 // fdatasync of segments
	Checkpoints   uint64
	Deletes       uint64 // blocks deleted
	Evicted       uint64 // blocks dropped by reclaim that had not expired
	EvictedBytes  uint64 // bytes of those, with headers
	Expired       uint64 // blocks dropped because they had expired
	Reclaimed     uint64 // segments deleted
	Reused        uint64 // segments made in the file of a deleted segment
	OverBudget    uint64 // writes refused by the daily budget
	OverQuota     uint64 // writes refused because their account was at its limit
	Waits         uint64 // times that a write waited for reclaim
	Squeezes      uint64 // times that the filesystem had less room than the cap
	WriteErrors   uint64 // failed writes, syncs and the like, without the next two counters
	NoSpaceErrors uint64 // those that failed with ENOSPC
	ReadOnly      uint64 // those that failed with EROFS

	Cap          int64 // bound on the bytes of all files
	Records      int64 // records in the index now
	IndexBytes   int64 // memory of the index now
	Segments     int64 // files now
	SegmentBytes int64 // bytes of those files and of spare ones now
	SegmentLimit int64 // their limit now, because the filesystem has less room than the cap; 0: none
	RowFileBytes int64 // bytes of Pebble's files now
	LiveBytes    int64 // the part of SegmentBytes in records of the index
	WrittenToday int64 // bytes written since midnight UTC
}

// Stats returns a snapshot. It reads one counter after the other.
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

// Progress tells how much of the index is loaded.
type Progress struct {
	Records  int64
	Fraction float64 // 1: everything
}

type progress struct {
	records, part atomic.Int64

	there map[uint32]bool // segments at Open; nil: the rows have been loaded
	gone  map[uint32]bool // segments that were missing at Open: at most missingMax
}

// Progress returns how much of the index is loaded.
func (t *Tier) Progress() Progress {
	return Progress{t.load.records.Load(), float64(t.load.part.Load()) / (1 << 16)}
}
