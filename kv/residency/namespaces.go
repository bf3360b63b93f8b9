package residency

import (
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// maxNamespaces is how many namespaces there can be at a time, those included that have no block
// any more but are in the ring.
const maxNamespaces = 1 << 16

// namespaces gives those of blocks a number. One that no holder has blocks of any more loses it
// once the ring has passed what was told of it.
type namespaces struct {
	byID map[block.ModelID]uint16
	list []namespace
	idle []uint16 // had no block at some time, oldest first, each once

	recent      block.ModelID // the one found last, and its number
	recentIndex uint16
	recentKnown bool
}

type namespace struct {
	id      block.ModelID
	text    string
	holders int    // that have blocks of it
	last    uint64 // change with which the last block of it went
	idle    bool   // in the list of those
	counts  bool   // its blocks count in overlap: of rank 0
}

func newNamespaces() namespaces { return namespaces{byID: map[block.ModelID]uint16{}} }

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

// add gives a namespace that find does not find a number; false if it is malformed or all numbers
// are taken. Oldest is the oldest change in the ring.
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
	n.list[i] = namespace{id: id, text: strings.Clone(text), counts: parsed.TPRank == 0 && parsed.PPRank == 0}
	n.byID[id] = i
	n.rest(i, oldest) // until there is a block
	return i, true
}

// rest notes that no holder has blocks of a namespace any more.
func (n *namespaces) rest(i uint16, change uint64) {
	s := &n.list[i]
	s.last = change
	if !s.idle {
		s.idle = true
		n.idle = append(n.idle, i)
	}
}

// reclaim takes the number of a namespace that nobody can read of any more.
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
			n.recentKnown = false
			return i, true
		}
	}
	return 0, false
}

// gained notes a block of holder h in a namespace.
func (x *Index) gained(h *holder, i uint16) {
	for int(i) >= len(h.spaces) {
		h.spaces = append(h.spaces, 0)
	}
	if h.spaces[i]++; h.spaces[i] == 1 {
		x.namespaces.list[i].holders++
	}
}

// lost notes that holder h has count blocks of a namespace less.
func (x *Index) lost(h *holder, i uint16, count uint32) {
	if h.spaces[i] -= count; h.spaces[i] > 0 {
		return
	}
	s := &x.namespaces.list[i]
	if s.holders--; s.holders == 0 {
		x.namespaces.rest(i, x.ring.last+1)
	}
}
