package residency

import (
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// maxNamespaces bounds the namespaces at a time. maxNamespaces includes namespaces without blocks
// that are still in the ring.
const maxNamespaces = 1 << 16

// namespaces numbers the namespaces of blocks. A namespace without blocks loses its number once the
// ring no longer has a change of that namespace.
type namespaces struct {
	byID map[block.ModelID]uint16
	list []namespace
	idle []uint16 // namespaces that once had no block, oldest first, each once

	families map[string]*family // by the text of rank 0

	recent      block.ModelID // the last result, and its number
	recentIndex uint16
	recentKnown bool
}

type namespace struct {
	id      block.ModelID
	text    string
	holders int    // holders with blocks of the namespace
	last    uint64 // change at which the last block went
	idle    bool   // the namespace is in the idle list
	counts  bool   // rank 0: the blocks count for overlap
	blocks  int    // blocks for which an object of the daemon's tiers stands; 0: such objects do not count
	ranks   uint64 // ranks of the model's engine
	family  *family
	rank    int    // number in the family
	bytes   uint64 // length of the block that the daemon stored last; 0: none
}

func newNamespaces() namespaces {
	return namespaces{byID: map[block.ModelID]uint16{}, families: map[string]*family{}}
}

func (n *namespaces) find(id block.ModelID) (uint16, bool) {
	if n.recentKnown && n.recent == id {
		return n.recentIndex, true
	}
	i, ok := n.byID[id]
	if ok {
		n.recent, n.recentIndex, n.recentKnown = id, i, true
	}
	return i, ok
}

// add numbers a new namespace. add returns false if the text is malformed or all numbers are taken.
// oldest is the oldest change in the ring.
func (n *namespaces) add(id block.ModelID, text string, oldest uint64) (uint16, bool) {
	parsed, err := block.ParseNamespace(text)
	if err != nil || parsed.Space != "" {
		return 0, false
	}
	i, ok := n.reclaim(oldest)
	if !ok {
		if len(n.list) == maxNamespaces {
			return 0, false
		}
		i = uint16(len(n.list))
		n.list = append(n.list, namespace{})
	}
	n.list[i] = namespace{id: id, text: strings.Clone(text), counts: parsed.TPRank == 0 && parsed.PPRank == 0,
		blocks: parsed.Blocks(), ranks: uint64(parsed.TP) * uint64(parsed.PP)}
	n.byID[id] = i
	n.joinFamily(i, parsed)
	n.rest(i, oldest) // until the namespace has a block
	return i, true
}

// rest notes that a namespace has no blocks any more.
func (n *namespaces) rest(i uint16, change uint64) {
	s := &n.list[i]
	s.last = change
	if !s.idle {
		s.idle = true
		n.idle = append(n.idle, i)
	}
}

// reclaim frees the number of a namespace that is no longer in the ring.
func (n *namespaces) reclaim(oldest uint64) (uint16, bool) {
	for len(n.idle) > 0 {
		i := n.idle[0]
		s := &n.list[i]
		if s.holders == 0 && s.last >= oldest {
			return 0, false
		}
		n.idle = n.idle[1:]
		s.idle = false
		if s.holders == 0 {
			delete(n.byID, s.id)
			n.leaveFamily(s)
			n.recentKnown = false
			return i, true
		}
	}
	return 0, false
}

// gained counts a new block of holder h in a namespace.
func (x *Index) gained(h *holder, i uint16) {
	for int(i) >= len(h.spaces) {
		h.spaces = append(h.spaces, 0)
	}
	if h.spaces[i]++; h.spaces[i] == 1 {
		x.namespaces.list[i].holders++
		if h == x.own && x.namespaces.list[i].counts {
			x.tellPresent()
		}
	}
}

// lost subtracts count blocks of holder h in a namespace.
func (x *Index) lost(h *holder, i uint16, count uint32) {
	if h.spaces[i] -= count; h.spaces[i] > 0 {
		return
	}
	s := &x.namespaces.list[i]
	if h == x.own && s.counts {
		x.tellPresent()
	}
	if s.holders--; s.holders == 0 {
		x.namespaces.rest(i, x.ring.last+1)
	}
}
