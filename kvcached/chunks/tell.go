package chunks

import (
	"bytes"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// state is why a chunk counts or does not.
type state uint8

const (
	fresh      state = iota // new, in the call that makes it
	idle                    // told, without parts
	untold                  // has parts, and nobody has told which blocks it stands for
	incomplete              // told, and some parts are missing
	disputed                // told in two ways
	counted
	states
)

// Tell tells which blocks chunks of a source stand for, and returns how many chunks the Table took.
// The error is alias.ErrSource, or ErrUnseen. Chunks that cannot count, such as ones of more than
// alias.MaxTokens, and chunks that contradict what is told already are not taken.
func (t *Table) Tell(s *alias.Source, all []alias.Chunk) (taken int, err error) {
	if err := check(s); err != nil {
		return 0, err
	}
	if s, err = t.resolve(s); err != nil {
		return 0, err
	}
	id := block.IDOf(s.Keys)
	f := family{s.Scheme, s.Keys, s.Model, s.DType, s.World, s.Layers > 0, s.Halves}
	for i := range all {
		c := &all[i]
		if c.Tokens() == 0 {
			continue
		}
		if t.tellOne(&f, s, c, carrierOf(s, id, c.Name)) {
			taken++
		}
	}
	if n := len(all) - taken; n > 0 {
		t.mu.Lock()
		t.counts.Refused += uint64(n)
		t.mu.Unlock()
	}
	return taken, nil
}

func (t *Table) tellOne(f *family, s *alias.Source, c *alias.Chunk, carrier block.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := t.enter(f, c.Name)
	if i == 0 {
		return false
	}
	ok := t.learn(i, s, c)
	if a, waits := t.unnoted[i]; waits {
		carrier = a
		delete(t.unnoted, i)
	}
	if p, here := t.parts[place(&carrier)]; ok && here && p.tiers&residency.Host != 0 {
		t.want(carrier, i)
	}
	t.settle(i)
	return ok
}

// learn records what a chunk stands for, unless that contradicts what is known. The caller holds
// t.mu and settles the chunk.
func (t *Table) learn(i uint32, s *alias.Source, c *alias.Chunk) bool {
	h := &t.chunks[i]
	number, ok := t.origins.hold(origin{*s, len(c.Blocks) / block.NameBytes * block.Tokens})
	if !ok {
		return false
	}
	if h.origin != 0 {
		same := h.origin == number && h.parent == c.Parent && bytes.Equal(h.blocks, c.Blocks)
		if same || h.any > 0 {
			t.origins.drop(number)
			h.disputed = h.disputed || !same
			return !h.disputed
		}
		t.origins.drop(h.origin)
	}
	h.origin, h.parent, h.blocks = number, c.Parent, bytes.Clone(c.Blocks)
	return true
}

// settle brings list, counts and index up to a chunk's parts and told blocks. A chunk without use
// is forgotten. The caller holds t.mu.
func (t *Table) settle(i uint32) {
	h := &t.chunks[i]
	is := t.tiersOf(h)
	for _, present := range [...]bool{true, false} { // so the object never goes in between
		for _, tier := range [...]residency.Tiers{residency.Host, residency.Disk} {
			if (is^h.tiers)&tier != 0 && is&tier != 0 == present {
				t.say(h, tier, present)
			}
		}
	}
	h.tiers = is
	t.states[h.state]--
	was := h.state
	h.state = h.now()
	t.states[h.state]++
	if (was == counted) != (h.state == counted) {
		t.list(h, i)
	}
	if (was == idle) != (h.state == idle) {
		if was == idle {
			t.idle.remove(t.chunks, i)
		} else {
			t.idle.add(t.chunks, i)
		}
	}
	switch {
	case h.any > 0:
	case h.origin == 0 || h.disputed:
		if h.state == idle {
			t.idle.remove(t.chunks, i)
		}
		t.leave(i)
	case t.idle.n > maxIdle:
		oldest := t.idle.first
		t.idle.remove(t.chunks, oldest)
		t.leave(oldest)
	default:
		h.layers = 0
	}
}

// now returns the state of a chunk.
func (h *chunk) now() state {
	switch {
	case h.any == 0:
		return idle
	case h.origin == 0:
		return untold
	case h.disputed:
		return disputed
	case h.tiers == 0:
		return incomplete
	}
	return counted
}

// tiersOf returns the tiers in which a chunk counts.
func (t *Table) tiersOf(h *chunk) (is residency.Tiers) {
	if h.origin == 0 || h.disputed || h.any == 0 {
		return 0
	}
	s := &t.origins.at(h.origin).key
	n := uint32(s.Parts())
	if h.any != n || h.layers > s.Layers || t.lacks(h) {
		return 0
	}
	if h.host == n {
		is |= residency.Host
	}
	if h.disk == n || h.host < n {
		is |= residency.Disk
	}
	return is
}

// say tells the index that a chunk came to a tier or left it.
func (t *Table) say(h *chunk, tier residency.Tiers, present bool) {
	o := t.origins.at(h.origin)
	if o.value.text == "" {
		text := o.key.Namespace(o.key.tokens).String()
		o.value = space{text, block.IDOf(text)}
	}
	last := len(h.blocks) - block.NameBytes
	c := residency.Change{Addr: block.Addr{Model: o.value.id, Layer: block.LayerAll}, Namespace: o.value.text,
		Tier:    tier,
		Present: present, Names: h.blocks[:last],
		Length: t.families.at(h.name.family).value * o.key.Loads()}
	copy(c.Addr.Digest[:], h.blocks[last:])
	copy(c.Parent[:], h.parent[:])
	t.o.Index.Apply(&c)
}
