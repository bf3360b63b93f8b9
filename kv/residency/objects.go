package residency

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/block"
)

// An object of the daemon's tiers stands for several blocks if its namespace has more than 16
// tokens per object. Its last block has the object's address, and the other blocks have the names
// that come with it. All are entries, linked by their parents. Objects of prompts with a common
// beginning share their first blocks, so each block counts the objects that hold it, by tier.
//
// The names are not at hand when an object leaves a tier. The parents lead from its last block to
// the others, because a parent never changes while a block has an entry. An object whose names
// contradict the parents of known blocks is left out.

// objectTiers are the tiers in which objects lie, in the order of the bits and counts below.
var objectTiers = [...]Tiers{Host, Disk}

// objectShift is the place of an object's tiers in the flags of its last block.
const objectShift = adapterShift

const objectBits = 3 << objectShift

// objects returns the tiers of the object whose last block an entry is: bit i is objectTiers[i].
func (e *entry) objects() uint8 { return e.flags & objectBits >> objectShift }

// shares counts, by tier, the objects that hold a block and whose last block is another.
type shares [len(objectTiers)]uint32

// sharesBytes is about what a map takes for shares.
const sharesBytes = 32

// implied returns the shares of a block that needs no entry in holder.shared: one object in each of
// its tiers, unless that object ends with the block itself.
func implied(tiers Tiers, objects uint8) (s shares) {
	for i, tier := range objectTiers {
		if tiers&tier != 0 && objects>>i&1 == 0 {
			s[i] = 1
		}
	}
	return s
}

// shares returns the shares of the block in a slot.
func (h *holder) shares(slot uint32) shares {
	if s, ok := h.shared[slot]; ok {
		return s
	}
	e := h.at(slot)
	return implied(e.tiers, e.objects())
}

// setObject applies news of an object. An object without as many names as it has further blocks is
// left out, unless the object lies in the other tier with names. An object for whose blocks there
// is no room is left out, too.
func (x *Index) setObject(n *news, names []byte, blocks int) {
	tier, present := 0, n.add != 0
	if (n.add|n.remove)&Disk != 0 {
		tier = 1
	}
	last, objects := x.own.find(n.own, n.namespace, n.layer), uint8(0)
	if last != 0 {
		objects = x.own.at(last).objects()
	}
	switch {
	case (objects>>tier&1 != 0) == present: // repeated, or left out before
	case objects == 0:
		x.enterObject(n, names, blocks, tier)
	default:
		var slots [block.MaxNames + 1]uint32
		for i := blocks - 1; ; i-- {
			if slots[i] = last; i == 0 {
				break
			}
			e := x.own.at(last)
			last = x.own.find(e.parent, n.namespace, n.layer)
		}
		for i := range blocks {
			if !present { // later blocks go first
				i = blocks - 1 - i
			}
			x.hold(slots[i], tier, present, i == blocks-1)
		}
	}
}

// enterObject adds an object that lies in no other tier.
func (x *Index) enterObject(n *news, names []byte, blocks, tier int) {
	if len(names) != (blocks-1)*block.NameBytes {
		return
	}
	own := func(i int) uint64 {
		if i == blocks-1 {
			return n.own
		}
		return binary.LittleEndian.Uint64(names[i*block.NameBytes:])
	}
	fresh, parent := 0, n.parent
	for i := range blocks {
		is := own(i)
		if slot := x.own.find(is, n.namespace, n.layer); slot == 0 {
			fresh++
		} else if has := x.own.at(slot).parent; has != parent && has != 0 && parent != 0 {
			return
		}
		if parent = is; i < blocks-1 && is == n.own {
			return
		}
	}
	if x.blocks+fresh > x.maxBlocks {
		x.stats.Overflow += uint64(fresh)
		return
	}
	parent = n.parent
	for i := range blocks {
		b := *n
		b.own, b.parent, parent = own(i), parent, own(i)
		ends := i == blocks-1
		slot := x.own.find(b.own, b.namespace, b.layer)
		if slot == 0 {
			slot = x.enter(x.own, &b)
			if ends {
				x.own.at(slot).flags |= 1 << tier << objectShift
			}
			continue
		}
		if e := x.own.at(slot); e.parent == 0 && b.parent != 0 {
			x.follow(x.own, slot, b.parent)
			x.tell(x.own, e)
		}
		x.hold(slot, tier, true, ends)
	}
}

// hold adds an object to those of a block in a tier, or takes it away. The object ends with the
// block or has it before its last one. A block without objects is dropped.
func (x *Index) hold(slot uint32, tier int, add, ends bool) {
	h := x.own
	e, s := h.at(slot), h.shares(slot)
	objects, was, is := e.objects(), e.tiers, Tiers(0)
	switch {
	case ends:
		objects ^= 1 << tier
	case add:
		s[tier]++
	default:
		s[tier]--
	}
	for i, t := range objectTiers {
		if s[i] > 0 || objects>>i&1 != 0 {
			is |= t
		}
	}
	h.setShares(slot, s, s == implied(is, objects))
	if is == 0 {
		x.drop(h, slot)
		return
	}
	e.tiers, e.flags = is, e.flags&^objectBits|objects<<objectShift
	if is != was {
		x.tell(h, e)
	}
}

// setShares records the shares of a block, unless they are implied.
func (h *holder) setShares(slot uint32, s shares, implied bool) {
	if !implied {
		if h.shared == nil {
			h.shared = map[uint32]shares{}
		}
		h.shared[slot] = s
		return
	}
	if delete(h.shared, slot); len(h.shared) == 0 {
		h.shared = nil // a map does not shrink
	}
}
