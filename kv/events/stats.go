package events

import "sync/atomic"

// counters count since the start.
type counters struct {
	batches, replayed                   atomic.Uint64
	gaps, lost, epochs, connects        atomic.Uint64
	malformed                           atomic.Uint64
	unknown, unusable, others           atomic.Uint64
	orphans, unnamed, overflow          atomic.Uint64
	dropped, reports, refused, snapshot atomic.Uint64
	paused                              atomic.Uint64
	chunks, chunksRefused, chunksLost   atomic.Uint64
}

// Stats are the counts and the state of a Follower.
type Stats struct {
	Following bool // the engine's blocks are known, and changes arrive
	Complete  bool // all blocks since the publisher's first batch, or since the engine was empty, are known
	Blocks    int  // blocks of the engine
	Pending   int  // digests not yet reported to the sink

	Batches   uint64 // batches applied, replayed ones included
	Replayed  uint64 // batches applied from replays
	Gaps      uint64 // gaps in the batches
	Lost      uint64 // gaps that the replay could not fill
	Epochs    uint64 // times that all blocks were forgotten
	Connects  uint64 // connections to the publisher
	Malformed uint64 // unreadable batches
	Unknown   uint64 // events of unknown kinds and media
	Unusable  uint64 // events with impossible values
	Others    uint64 // events of other groups and ranks, which are ignored
	Orphans   uint64 // blocks with an unknown parent
	Unnamed   uint64 // blocks that tokens do not identify, such as those with images
	Overflow  uint64 // blocks beyond MaxBlocks
	Paused    uint64 // pauses of the reading because the engine sent too much
	Dropped   uint64 // times that changes were dropped because the sink took none
	Reports   uint64 // reports that the sink took
	Refused   uint64 // reports that the sink refused
	Snapshots uint64 // reports that began a snapshot

	Chunks        uint64 // chunks that the sink took
	ChunksRefused uint64 // chunks that the sink did not take
	ChunksLost    uint64 // chunks that were not named or not told: a block was unknown, or too many waited
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
		Chunks: c.chunks.Load(), ChunksRefused: c.chunksRefused.Load(), ChunksLost: c.chunksLost.Load(),
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Following, s.Complete, s.Pending = f.following, f.following && f.complete, f.out.size()
	if f.known != nil {
		s.Blocks = f.known.blocks
	}
	return s
}

// Add adds the stats of another data-parallel rank of the engine. The sum follows, and is complete,
// if both do and are.
func (s *Stats) Add(o *Stats) {
	s.Following, s.Complete = s.Following && o.Following, s.Complete && o.Complete
	s.Blocks, s.Pending = s.Blocks+o.Blocks, s.Pending+o.Pending
	s.Chunks, s.ChunksRefused, s.ChunksLost = s.Chunks+o.Chunks, s.ChunksRefused+o.ChunksRefused,
		s.ChunksLost+o.ChunksLost
	others := o.counts()
	for i, count := range s.counts() {
		*count += *others[i]
	}
}

// Counters are the numbers in Stats that only grow, for metrics.
var Counters = []struct {
	Name, Help string
}{
	{"batches", "Batches of KV events that were applied."},
	{"replayed", "Batches of KV events that a replay brought after they were missed."},
	{"gaps", "Gaps in an engine's numbered batches of KV events."},
	{"lost", "Gaps in an engine's KV events that no replay filled, so that all its known blocks were forgotten."},
	{"epochs", "Times that all known blocks of the engine were forgotten: after lost or malformed batches, and its restarts."},
	{"connects", "Connections to the engine's publisher."},
	{"malformed", "Messages and batches of KV events that could not be read."},
	{"unknown", "KV events of an unknown kind or medium, which do not count."},
	{"unusable", "KV events on stored blocks with impossible values, which do not count."},
	{"others", "KV events of other cache groups and data-parallel ranks, which do not count."},
	{"orphans", "Blocks that do not count because the block before them is not known."},
	{"unnamed", "Blocks that do not count because their tokens alone do not identify them, as with images."},
	{"overflow", "Blocks that do not count because the engine has more than the bound on its blocks."},
	{"paused", "Pauses in reading because the engine publishes KV events faster than they are read; events that its socket cannot hold meanwhile are a gap."},
	{"dropped", "Times that changes were dropped because their receiver did not take them; it gets a snapshot instead."},
	{"reports", "Reports of the engine's blocks that their receiver took."},
	{"reports_refused", "Reports of the engine's blocks that their receiver did not take, and that were repeated."},
	{"snapshots", "Reports that began with all blocks of the engine."},
}

// Counts returns the values of Counters, in their order.
func (s *Stats) Counts() (all []uint64) {
	for _, count := range s.counts() {
		all = append(all, *count)
	}
	return all
}

// counts returns the fields of Counters, in their order.
func (s *Stats) counts() []*uint64 {
	return []*uint64{
		&s.Batches, &s.Replayed, &s.Gaps, &s.Lost, &s.Epochs, &s.Connects, &s.Malformed, &s.Unknown,
		&s.Unusable, &s.Others, &s.Orphans, &s.Unnamed, &s.Overflow, &s.Paused, &s.Dropped, &s.Reports,
		&s.Refused, &s.Snapshots,
	}
}
