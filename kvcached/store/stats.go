package store

import (
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Counts are what a Store has done since it was opened.
type Counts struct {
	Hits             uint64 // Gets answered from RAM
	Misses           uint64 // Gets without an answer
	Puts             uint64 // blocks committed
	Deletes          uint64 // blocks deleted
	Expired          uint64 // blocks removed from RAM because their time was over
	Refused          uint64 // reservations that failed: arena full, quota, too many namespaces
	Promotions       uint64 // blocks brought from SSD to RAM
	PromotionsFailed uint64 // Gets that missed because SSD could not be read or had a damaged block
	WrittenBehind    uint64 // blocks written to SSD after their second use
	BehindDropped    uint64 // blocks that were to be, but the queue was full
	BehindChanging   uint64 // blocks that were to be, but their address was replaced on SSD not long ago
	BehindFailed     uint64 // blocks that were to be, but could not
	Durable          uint64 // commits that waited for SSD
	DiskDeletes      uint64 // blocks deleted from SSD, by a deletion or a replacement
	ReleasedTwice    uint64 // calls of Release after the first, which a caller must not make
}

// Stats is a snapshot of a Store.
type Stats struct {
	Counts
	RAM          ram.Usage
	Backing      ram.Backing // of the arena
	BehindBlocks int         // that wait to be written to SSD
	BehindBytes  int64       // of the arena that those take
	HasSSD       bool        // if false the rest is zero
	SSD          ssd.Stats
	Loading      ssd.Progress // of the index of the SSD tier
}

// Stats is what the store has done and holds.
func (s *Store) Stats() Stats {
	var st Stats
	if s.disk != nil {
		st.HasSSD, st.SSD, st.Loading = true, s.disk.Stats(), s.disk.Progress()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Counts, st.RAM, st.Backing = s.counts, s.tier.Usage(), s.arena.Backing()
	st.BehindBlocks, st.BehindBytes = s.behind.n, s.behind.bytes
	return st
}

// NamespaceUsage is what the blocks of a namespace take.
type NamespaceUsage struct {
	Namespace string // canonical text
	Blocks    int    // in RAM
	Bytes     int64  // of the arena
	SSDBlocks int    // on SSD, as far as the index is loaded; those that are in RAM too count in both
	SSDBytes  int64  // of segments
}

// Namespaces lists the namespaces that have blocks.
func (s *Store) Namespaces() []NamespaceUsage {
	all := s.ramNamespaces()
	if s.disk == nil {
		return all
	}
	at := make(map[string]int, len(all))
	for i := range all {
		at[all[i].Namespace] = i
	}
	for _, u := range s.disk.Namespaces() {
		i, known := at[u.Namespace]
		if !known {
			i, all = len(all), append(all, NamespaceUsage{Namespace: u.Namespace})
		}
		all[i].SSDBlocks, all[i].SSDBytes = u.Blocks, u.Bytes
	}
	return all
}

// ramNamespaces lists those that have blocks in RAM, and only what they have there.
func (s *Store) ramNamespaces() []NamespaceUsage {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []NamespaceUsage
	s.tier.Names().Each(func(n *ram.Name) {
		if n.Blocks > 0 {
			all = append(all, NamespaceUsage{Namespace: n.Text, Blocks: n.Blocks, Bytes: n.Bytes})
		}
	})
	return all
}
