package residency

import "github.com/cognitora/dataplane/kv/block"

// MaxRanks bounds the tensor- times pipeline-parallel ranks of an engine whose blocks in the
// daemon's tiers count for routers.
const MaxRanks = 64

// family holds the namespaces that differ only by rank. Each rank has a part of every block.
type family struct {
	text   string
	spaces []uint32 // by rank: 1 + the namespace's number; 0: the rank has no blocks
	known  int      // ranks with a number
}

// joinFamily adds a new namespace to its family, if it has several ranks and at most MaxRanks.
func (n *namespaces) joinFamily(i uint16, parsed block.Namespace) {
	s := &n.list[i]
	if s.ranks == 1 || s.ranks > MaxRanks {
		return
	}
	s.rank = int(parsed.PPRank*parsed.TP + parsed.TPRank)
	parsed.TPRank, parsed.PPRank = 0, 0
	text := parsed.String()
	if s.family = n.families[text]; s.family == nil {
		s.family = &family{text: text, spaces: make([]uint32, s.ranks)}
		n.families[text] = s.family
	}
	s.family.spaces[s.rank] = 1 + uint32(i)
	s.family.known++
}

// leaveFamily removes a namespace that loses its number.
func (n *namespaces) leaveFamily(s *namespace) {
	if s.family == nil {
		return
	}
	s.family.spaces[s.rank] = 0
	if s.family.known--; s.family.known == 0 {
		delete(n.families, s.family.text)
	}
}

// common returns the tiers in which all ranks of a family but one have a block of the daemon's
// tiers: Host if it is in RAM everywhere, Disk if it is on SSD everywhere, and Disk also if it is
// in either everywhere and not in RAM everywhere. A rank of -1 leaves no rank out.
func (x *Index) common(e *entry, f *family, but int) Tiers {
	all := Host | Disk
	for rank, ns := range f.spaces {
		if rank == but {
			continue
		}
		if ns == 0 {
			return 0
		}
		slot := x.own.find(e.own(), uint16(ns-1), e.layer)
		if slot == 0 {
			return 0
		}
		all &= x.own.at(slot).tiers
	}
	if all&Host == 0 {
		all = Disk
	}
	return all
}

// tellFirst tells rank 0's block again after the block of another rank has changed, if it may count
// now or may have counted before.
func (x *Index) tellFirst(e *entry) {
	s := &x.namespaces.list[e.namespace]
	if s.family == nil || s.rank == 0 || x.common(e, s.family, s.rank) == 0 {
		return
	}
	if slot := x.own.find(e.own(), uint16(s.family.spaces[0]-1), e.layer); slot != 0 {
		x.ring.add(x.own.Number, x.own.at(slot))
	}
}
