package events

import "sync/atomic"

// counters are counts since the start.
type counters struct {
	batches, replayed                   atomic.Uint64
	gaps, lost, epochs, connects        atomic.Uint64
	malformed                           atomic.Uint64
	unknown, unusable, others           atomic.Uint64
	orphans, unnamed, overflow          atomic.Uint64
	dropped, reports, refused, snapshot atomic.Uint64
	paused                              atomic.Uint64
}

// Stats are the counts and the state of a Follower.
type Stats struct {
	Following bool // the engine's blocks are known, and changes arrive
	Complete  bool // all blocks are known since the publisher's first batch, or since the engine was empty
	Blocks    int  // blocks of the engine
	Pending   int  // digests not yet reported to the sink

	Batches   uint64 // applied, replayed ones included
	Replayed  uint64 // batches applied from replays
	Gaps      uint64 // gaps in the batches
	Lost      uint64 // gaps that the replay could not fill
	Epochs    uint64 // times that all was forgotten
	Connects  uint64 // connections to the publisher
	Malformed uint64 // unreadable batches
	Unknown   uint64 // events of unknown kinds and media
	Unusable  uint64 // events with impossible values
	Others    uint64 // events of other groups and ranks, which are ignored
	Orphans   uint64 // blocks with an unknown parent
	Unnamed   uint64 // blocks that tokens do not identify, such as those of images
	Overflow  uint64 // blocks beyond MaxBlocks
	Paused    uint64 // pauses of the reading because the engine sent too much
	Dropped   uint64 // times that changes were dropped because the sink took none
	Reports   uint64 // taken by the sink
	Refused   uint64 // refused by the sink
	Snapshots uint64 // begun reports of everything
}

// Stats returns the counts and the state as of now.
func (f *Follower) Stats() Stats {
	c := &f.counts
	s := Stats{
		Batches: c.batches.Load(), Replayed: c.replayed.Load(), Gaps: c.gaps.Load(), Lost: c.lost.Load(),
		Epochs:   c.epochs.Load(),
		Connects: c.connects.Load(), Malformed: c.malformed.Load(), Unknown: c.unknown.Load(),
		Unusable: c.unusable.Load(), Others: c.others.Load(),
		Orphans: c.orphans.Load(), Unnamed: c.unnamed.Load(), Overflow: c.overflow.Load(), Dropped: c.dropped.Load(),
		Reports: c.reports.Load(), Refused: c.refused.Load(), Snapshots: c.snapshot.Load(),
		Paused: c.paused.Load(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Following, s.Complete, s.Pending = f.following, f.following && f.complete, f.out.size()
	if f.known != nil {
		s.Blocks = f.known.blocks
	}
	return s
}

// Counters are the ever-growing numbers in Stats, for metrics.
var Counters = []struct {
	Name, Help string
	Value      func(*Stats) uint64
}{
	{"batches", "Batches of KV events that were applied.", func(s *Stats) uint64 { return s.Batches }},
	{"replayed", "Batches of KV events that a replay brought after they were missed.", func(s *Stats) uint64 { return s.Replayed }},
	{"gaps", "Gaps in an engine's numbered batches of KV events.", func(s *Stats) uint64 { return s.Gaps }},
	{"lost", "Gaps in an engine's KV events that no replay filled, so that all its known blocks were forgotten.", func(s *Stats) uint64 { return s.Lost }},
	{"epochs", "Times that all known blocks of the engine were forgotten: after lost or malformed batches, and its restarts.", func(s *Stats) uint64 { return s.Epochs }},
	{"connects", "Connections to the engine's publisher.", func(s *Stats) uint64 { return s.Connects }},
	{"malformed", "Messages and batches of KV events that could not be read.", func(s *Stats) uint64 { return s.Malformed }},
	{"unknown", "KV events of an unknown kind or medium, which do not count.", func(s *Stats) uint64 { return s.Unknown }},
	{"unusable", "KV events on stored blocks with impossible values, which do not count.", func(s *Stats) uint64 { return s.Unusable }},
	{"others", "KV events of other cache groups and data-parallel ranks, which do not count.", func(s *Stats) uint64 { return s.Others }},
	{"orphans", "Blocks that do not count because the block before them is not known.", func(s *Stats) uint64 { return s.Orphans }},
	{"unnamed", "Blocks that do not count because their tokens alone do not identify them, as with images.", func(s *Stats) uint64 { return s.Unnamed }},
	{"overflow", "Blocks that do not count because the engine has more than the bound on its blocks.", func(s *Stats) uint64 { return s.Overflow }},
	{"paused", "Pauses in reading because the engine publishes KV events faster than they are read; events that its socket cannot hold meanwhile are a gap.", func(s *Stats) uint64 { return s.Paused }},
	{"dropped", "Times that changes were dropped because their receiver did not take them; it gets a snapshot instead.", func(s *Stats) uint64 { return s.Dropped }},
	{"reports", "Reports of the engine's blocks that their receiver took.", func(s *Stats) uint64 { return s.Reports }},
	{"reports_refused", "Reports of the engine's blocks that their receiver did not take, and that were repeated.", func(s *Stats) uint64 { return s.Refused }},
	{"snapshots", "Reports that began with all blocks of the engine.", func(s *Stats) uint64 { return s.Snapshots }},
}
