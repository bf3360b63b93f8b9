package store

import (
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Counts are the events of a Store since it was opened.
type Counts struct {
	Hits             uint64 // Gets that RAM answered
	Misses           uint64 // Gets that found no block
	Puts             uint64 // committed blocks
	Deletes          uint64 // deleted blocks
	Expired          uint64 // expired blocks that were removed from RAM
	Refused          uint64 // failed reservations: arena full, quota, too many namespaces
	Promotions       uint64 // blocks that were brought from SSD to RAM
	PromotionsFailed uint64 // Gets that missed because SSD could not be read or had a damaged block
	WrittenBehind    uint64 // blocks that were written to SSD after their first read
	BehindDropped    uint64 // blocks not written behind because the queue was full
	BehindChanging   uint64 // blocks not written behind because their address was replaced on SSD not long ago
	BehindFailed     uint64 // blocks not written behind because the write failed
	Durable          uint64 // commits that waited for SSD
	AnnotatedBytes   uint64 // payload written to SSD again because the attribute of a block on SSD grew
	DiskDeletes      uint64 // blocks that a deletion or a replacement deleted from SSD
	ReleasedTwice    uint64 // calls of Release after the first, which are errors of the caller
}

// Stats is a snapshot of a Store.
type Stats struct {
	Counts
	RAM          ram.Usage
	Backing      ram.Backing // kind of memory of the arena
	BehindBlocks int         // blocks that wait to be written to SSD
	BehindBytes  int64       // bytes of the arena that these blocks take
	HasSSD       bool        // if false, the fields below are zero
	SSD          ssd.Stats
	Loading      ssd.Progress // progress of loading the SSD tier's index
}

// Stats returns a snapshot of the store.
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

// NamespaceUsage is the space that the blocks of a namespace take.
type NamespaceUsage struct {
	Namespace string // canonical text
	Blocks    int    // blocks in RAM
	Bytes     int64  // bytes of the arena
	SSDBlocks int    // on SSD, as far as the index is loaded; includes blocks that are in RAM as well
	SSDBytes  int64  // bytes of the SSD tier's segments
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

// ramNamespaces lists the namespaces with blocks in RAM, and their usage of RAM.
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
