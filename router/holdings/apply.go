package holdings

import (
	"encoding/binary"
	"errors"

	"github.com/cognitora/dataplane/kv/block"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router/residency"
)

// These bits make up a tier set on the wire.
const (
	tierDevice = uint8(cognitorav1.Tier_TIER_DEVICE)
	tierHost   = uint8(cognitorav1.Tier_TIER_HOST)
	tierDisk   = uint8(cognitorav1.Tier_TIER_DISK)
)

// apply takes one message of the stream.
func (c *cache) apply(w *cognitorav1.WatchResponse) error {
	switch w.Part {
	case cognitorav1.WatchResponse_PART_RESET:
		c.reset(w)
	case cognitorav1.WatchResponse_PART_SNAPSHOT:
	case cognitorav1.WatchResponse_PART_CHANGES, cognitorav1.WatchResponse_PART_SYNCED:
		if w.Epoch != c.epoch || w.First != c.last+1 || w.Last+1 < w.First {
			return errStream
		}
		c.last = w.Last
	default:
		return nil // a part of a later version; the known parts hold the same content
	}
	c.supply(w)
	if w.Readers != nil {
		if err := c.hear(w.Readers); err != nil {
			return err
		}
	}
	if err := c.holders(w); err != nil {
		return err
	}
	if err := c.blocks(w); err != nil {
		return err
	}
	if w.Part == cognitorav1.WatchResponse_PART_SYNCED {
		c.synced = true
		c.resyncs.Add(1)
	}
	return nil
}

// reset forgets all blocks and engines of the daemon.
func (c *cache) reset(w *cognitorav1.WatchResponse) {
	c.until.Store(0)
	c.epoch, c.last, c.synced, c.fresh = w.Epoch, w.Last, false, false
	c.readers, c.present, c.unlisted = nil, nil, false
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.empty()
	for number, e := range c.engines {
		c.forget(number, e)
	}
	clear(c.roomless)
	c.m.publish()
}

// forget drops an engine. The caller holds c.m.mu.
func (c *cache) forget(number uint32, e *engine) {
	delete(c.engines, number)
	for _, ref := range e.refs() {
		c.m.index.Leave(ref)
		delete(c.numbers, ref)
		delete(c.batches, ref)
	}
}

// maxEngines bounds the engines of one host.
const maxEngines = 256

// holders records the holders that a message adds or removes.
func (c *cache) holders(w *cognitorav1.WatchResponse) error {
	if len(w.Holders) == 0 && len(w.Gone) == 0 {
		return nil
	}
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	changed := false
	for _, h := range w.Holders {
		switch {
		case h.Engine == "":
			c.own = h.Number
		case c.m.o.NoEngines || c.engines[h.Number] != nil || c.roomless[h.Number] != "" || c.left:
		case len(c.engines)+len(c.roomless) >= maxEngines:
			return errors.New("holdings: too many engines on one host")
		default:
			if e := c.join(h.Engine, h.Epoch); e != nil {
				c.engines[h.Number], changed = e, true
			} else {
				c.roomless[h.Number] = h.Engine
			}
		}
	}
	for _, number := range w.Gone {
		delete(c.roomless, number)
		if e := c.engines[number]; e != nil {
			c.forget(number, e)
			changed = true
		}
	}
	if changed && !c.left {
		c.m.publish()
	}
	return nil
}

// names records the namespaces of the daemon's blocks and the models of its engines' blocks.
func (c *cache) names(w *cognitorav1.WatchResponse) error {
	b := w.Blocks
	for i, number := range b.Namespace {
		if int(number) >= len(w.Namespaces) || len(w.Namespaces[number]) > block.MaxNamespace {
			return errStream
		}
		if i > 0 && number == b.Namespace[i-1] && b.Layer[i] == b.Layer[i-1] && b.Holder[i] == b.Holder[i-1] {
			continue
		}
		if b.Holder[i] == c.own {
			c.m.spaces.heard(w.Namespaces[number], b.Layer[i])
		} else if e := c.engines[b.Holder[i]]; e != nil && e.model.Load() == nil {
			if n, err := block.ParseNamespace(w.Namespaces[number]); err == nil {
				e.model.Store(&n.Model)
			}
		}
	}
	return nil
}

// nameBytes is the length of a digest in the stream. The index knows a block by this prefix of its
// digest.
const nameBytes = 8

// blocks records the tier sets of some blocks.
func (c *cache) blocks(w *cognitorav1.WatchResponse) error {
	b := w.Blocks
	n := len(b.GetTiers())
	if n == 0 {
		return nil
	}
	if len(b.Digests) != nameBytes*n || len(b.Holder) != n || len(b.Position) != n || len(b.Leaders) != 8*n ||
		len(b.Parents) != 8*n || len(b.Namespace) != n || len(b.Layer) != n {
		return errStream
	}
	if err := c.names(w); err != nil {
		return err
	}
	var of *held
	for i := range n {
		at, holder := blockAt(b, i), b.Holder[i]
		if holder != c.own {
			if err := c.engineBlock(&at, c.engines[holder], b.Tiers[i]); err != nil {
				return err
			}
			continue
		}
		space := b.Namespace[i]
		same := i > 0 && holder == b.Holder[i-1] && space == b.Namespace[i-1]
		if !same || of == nil && b.Tiers[i] != 0 && b.Tiers[i-1] == 0 { // no place is asked for without a block
			of = c.find(w.Namespaces[space], b.Tiers[i] != 0)
		}
		if of != nil && b.Layer[i] == block.LayerAll && len(w.BlockBytes) == len(w.Namespaces) {
			c.weigh(of, w.BlockBytes[space])
		}
		c.ownBlock(&at, of, b.Tiers[i])
	}
	return c.flush()
}

// flush applies the gathered changes to the index.
func (c *cache) flush() error {
	for ref, batch := range c.batches {
		if len(batch.runs) > 0 {
			err := c.m.index.Apply(ref, c.numbers[ref], batch.events())
			c.numbers[ref]++
			batch.reset()
			if err != nil && !errors.Is(err, residency.ErrLeft) {
				return err
			}
		}
	}
	return nil
}

// located is a block with its place in its chain.
type located struct {
	own, leader, parent uint64 // first 8 bytes of digests; zero leader: unknown, zero parent: none
	position            uint32 // 1 + the block's number in the chain; 0: unknown
}

func blockAt(b *cognitorav1.Blocks, i int) located {
	return located{
		own: binary.LittleEndian.Uint64(b.Digests[nameBytes*i:]), leader: binary.LittleEndian.Uint64(b.Leaders[8*i:]),
		parent: binary.LittleEndian.Uint64(b.Parents[8*i:]), position: b.Position[i],
	}
}

func (b *located) key() residency.Key { return residency.KeyOf(b.leader, b.own, int(b.position-1)) }

// before returns the key of the preceding block, if that block is in the same group.
func (b *located) before() residency.Key {
	if (b.position-1)%residency.GroupBlocks == 0 {
		return 0
	}
	return residency.KeyOf(b.leader, b.parent, int(b.position-2))
}

// ownBlock records the tiers of one block of the daemon. of is the block's configuration, or nil if
// it has no place.
func (c *cache) ownBlock(b *located, of *held, tiers uint8) {
	switch {
	case of == nil && tiers != 0:
		c.leftOut.Add(1)
	case of != nil && b.position > 0:
		c.batch(of.host).add(b, tiers&tierHost != 0)
		c.batch(of.any).add(b, tiers&(tierHost|tierDisk) != 0)
	}
}

// engineBlock records the tiers of one block of an engine.
func (c *cache) engineBlock(b *located, e *engine, tiers uint8) error {
	switch {
	case e == nil:
		return nil
	case !e.media && tiers&(tierHost|tierDisk) != 0:
		c.media = true
		return errMedia
	case b.position == 0:
		return nil
	}
	c.batch(e.ref).add(b, tiers&tierDevice != 0)
	if e.media {
		c.batch(e.near).add(b, tiers&(tierDevice|tierHost) != 0)
		c.batch(e.far).add(b, tiers&(tierDevice|tierHost|tierDisk) != 0)
	}
	return nil
}

func (c *cache) batch(ref residency.Ref) *batch {
	b := c.batches[ref]
	if b == nil {
		b = &batch{}
		c.batches[ref] = b
	}
	return b
}

// batch gathers the changes of one holder's blocks. Consecutive blocks of a chain go together.
type batch struct {
	runs []run
	keys []residency.Key
	out  []residency.Event
	last residency.Key
}

type run struct {
	kind   residency.Kind
	parent residency.Key
	n      int // number of keys
}

func (b *batch) add(block *located, held bool) {
	kind := residency.Removed
	if held {
		kind = residency.Stored
	}
	key, before := block.key(), block.before()
	if end := len(b.runs) - 1; end >= 0 && b.runs[end].kind == kind && (!held || before != 0 && before == b.last) {
		b.runs[end].n++
	} else {
		b.runs = append(b.runs, run{kind, before, 1})
	}
	b.keys, b.last = append(b.keys, key), key
}

func (b *batch) events() []residency.Event {
	keys := b.keys
	for _, r := range b.runs {
		e := residency.Event{Kind: r.kind, Keys: keys[:r.n]}
		if r.kind == residency.Stored {
			e.Parent = r.parent
		}
		b.out, keys = append(b.out, e), keys[r.n:]
	}
	return b.out
}

func (b *batch) reset() { b.runs, b.keys, b.out, b.last = b.runs[:0], b.keys[:0], b.out[:0], 0 }
