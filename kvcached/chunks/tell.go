package chunks

import (
	"bytes"
	"hash/maphash"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// state is why a chunk counts or does not.
type state uint8

const (
	none       state = iota // neither told nor with parts: new, or to be forgotten
	idle                    // told, without parts
	untold                  // has parts, and nobody has told which blocks it stands for
	incomplete              // told, and some parts are missing
	contested               // told in two ways
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
	f := familyOf(s)
	family := maphash.Comparable(t.seed, *f)
	for i := range all {
		c := &all[i]
		if c.Tokens() == 0 {
			continue
		}
		carrier := carrierOf(s, id, c.Name)
		if t.tellOne(t.id(family, c.Name), f.single(), s, c, carrier) {
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

func (t *Table) tellOne(id uint64, one bool, s *alias.Source, c *alias.Chunk, carrier block.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.enter(id, one)
	_, was := t.begin(r)
	ok := t.learn(r, s, c)
	if d, waits := t.unnoted[r]; waits && ok {
		carrier = block.Addr{Digest: d, Model: block.IDOf(s.Keys)}
		delete(t.unnoted, r)
	}
	if at, _, here := t.part(&carrier); ok && here && at.get().chunk() == r && at.get().tiers()&residency.Host != 0 {
		t.want(carrier, r)
	}
	t.settle(r, was)
	return ok
}

// learn records what a chunk stands for, unless that contradicts what is known. The caller holds
// t.mu and settles the chunk.
func (t *Table) learn(r ref, s *alias.Source, c *alias.Chunk) bool {
	h := t.chunk(r)
	number, ok := t.origins.hold(origin{*s, len(c.Blocks) / block.NameBytes * block.Tokens})
	if !ok {
		return false
	}
	if h.origin() != 0 {
		same := h.origin() == number && t.parent(h) == c.Parent && bytes.Equal(t.blocks(h), c.Blocks)
		if same || t.tally(h).any > 0 {
			t.origins.drop(number)
			if !same {
				h.put(h.get() | disputed)
			}
			return !h.is(disputed)
		}
	}
	t.set(h, number, c)
	return true
}

// standing is how a chunk stands.
type standing struct {
	state state
	tiers residency.Tiers // in which it counts
}

// begin begins a change of a chunk, which settle ends. The caller holds t.mu.
func (t *Table) begin(r ref) (*chunk, standing) {
	h := t.chunk(r)
	was := t.standing(h)
	if was.state == idle {
		t.idle.remove(h)
	}
	return h, was
}

// settle brings queue, counts and index up to a chunk's parts and told blocks. A chunk without use
// is forgotten.
func (t *Table) settle(r ref, was standing) {
	h := t.chunk(r)
	is := t.standing(h)
	for _, present := range [...]bool{true, false} { // so the object never goes in between
		for _, tier := range [...]residency.Tiers{residency.Host, residency.Disk} {
			if (is.tiers^was.tiers)&tier != 0 && is.tiers&tier != 0 == present {
				t.say(h, tier, present)
			}
		}
	}
	t.states[was.state]--
	t.states[is.state]++
	if (was.state == counted) != (is.state == counted) {
		t.list(r, is.state == counted)
	}
	switch is.state {
	case none:
		t.leave(r)
	case idle:
		if !h.is(single) {
			t.setTally(h, &tally{})
		}
		t.idle.add(r, h)
		if t.idle.len() > maxIdle {
			oldest := t.idle.first()
			t.idle.remove(t.chunk(oldest))
			t.leave(oldest)
			t.states[idle]--
			t.states[none]++
		}
	}
}

// standing returns how a chunk stands.
func (t *Table) standing(h *chunk) standing {
	l := t.tally(h)
	switch {
	case l.any == 0 && (h.origin() == 0 || h.is(disputed)):
		return standing{state: none}
	case l.any == 0:
		return standing{state: idle}
	case h.origin() == 0:
		return standing{state: untold}
	case h.is(disputed):
		return standing{state: contested}
	}
	s := &t.origins.at(h.origin()).key
	n, is := uint32(s.Parts()), residency.Tiers(0)
	if l.any != n || l.layers > s.Layers || t.hasBeside(&s.Source) {
		return standing{state: incomplete}
	}
	if l.host == n {
		is |= residency.Host
	}
	if l.disk == n || l.host < n {
		is |= residency.Disk
	}
	return standing{counted, is}
}

// say tells the index that a chunk came to a tier or left it.
func (t *Table) say(h *chunk, tier residency.Tiers, present bool) {
	o := t.origins.at(h.origin())
	if o.value.text == "" {
		text := o.key.Namespace(o.key.tokens).String()
		o.value = space{text, block.IDOf(text), maphash.Comparable(t.seed, *familyOf(&o.key.Source))}
	}
	blocks := t.blocks(h)
	last := len(blocks) - block.NameBytes
	c := residency.Change{Addr: block.Addr{Model: o.value.id, Layer: block.LayerAll}, Namespace: o.value.text,
		Tier:    tier,
		Present: present, Names: blocks[:last], Length: t.lengths[o.value.family].bytes * o.key.PartsWithBytes()}
	copy(c.Addr.Digest[:], blocks[last:])
	parent := t.parent(h)
	copy(c.Parent[:], parent[:])
	t.o.Index.Apply(&c)
}
