package residency

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/kv/block"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spaceOf returns the namespace of a model with one rank.
func spaceOf(model string) string { return ranksOf(model, 16, 1, 1)[0] }

// ranksOf returns the namespaces of a model's ranks, rank 0 first. Its objects have the given
// tokens.
func ranksOf(model string, tokens, tp, pp uint32) (ranks []string) {
	n := block.Namespace{Model: model, Revision: "r", DType: "bf16", Layout: "l", Tokens: tokens, TP: tp, PP: pp}
	for n.PPRank = range pp {
		for n.TPRank = range tp {
			ranks = append(ranks, n.String())
		}
	}
	return ranks
}

// object returns a change of the object with blocks from to to (included) of a chain.
func object(space string, chain []block.Digest, from, to int, tier Tiers, present, named bool) *Change {
	c := change(space, chain, to, tier, present)
	if c.Parent = (block.Digest{}); from > 0 {
		c.Parent = chain[from-1]
	}
	for _, d := range chain[from:to] {
		if present && named {
			c.Names = append(c.Names, d[:block.NameBytes]...)
		}
	}
	return c
}

// chainOf returns the digests of a prompt.
func chainOf(name string, blocks int) []block.Digest {
	d := block.Seed(name, "", "")
	out := make([]block.Digest, blocks)
	for i := range out {
		d = block.Next(d, &[block.Tokens]uint32{uint32(i)})
		out[i] = d
	}
	return out
}

// change returns a change of block i of a chain in the daemon's tiers.
func change(space string, chain []block.Digest, i int, tier Tiers, present bool) *Change {
	c := &Change{Addr: block.Addr{Digest: chain[i], Model: block.IDOf(space), Layer: block.LayerAll}, Namespace: space,
		Tier: tier, Present: present}
	if i > 0 {
		c.Parent = chain[i-1]
	}
	return c
}

// at identifies a block of a holder.
type at struct {
	engine string
	space  string
	layer  uint32
	digest Name
}

// mirror is the state that a watcher builds from batches alone.
type mirror struct {
	holders map[uint32]Holder
	blocks  map[uint32]map[at]Block
	due     uint64
	synced  bool
	resets  int
}

func (m *mirror) apply(b *Batch) error {
	switch b.Part {
	case Reset:
		*m = mirror{holders: map[uint32]Holder{}, blocks: map[uint32]map[at]Block{}, due: b.Last + 1,
			resets: m.resets + 1}
	case Changes, Synced:
		if b.First != m.due || b.Last+1 < b.First {
			return fmt.Errorf("changes %d to %d came, %d was due", b.First, b.Last, m.due)
		}
		m.due = b.Last + 1
		m.synced = m.synced || b.Part == Synced
	}
	for _, h := range b.Holders {
		m.holders[h.Number] = h
	}
	for _, k := range b.Blocks {
		h, ok := m.holders[k.Holder]
		if !ok {
			return fmt.Errorf("holder %d is not known", k.Holder)
		}
		if m.blocks[k.Holder] == nil {
			m.blocks[k.Holder] = map[at]Block{}
		}
		key := at{h.Engine, b.Namespaces[k.Namespace], k.Layer, k.Name}
		if k.Tiers == 0 {
			delete(m.blocks[k.Holder], key)
		} else {
			m.blocks[k.Holder][key] = k
		}
	}
	for _, n := range b.Gone {
		delete(m.holders, n)
		delete(m.blocks, n)
	}
	return nil
}

// all returns every block with its tiers.
func (m *mirror) all() map[at]Block {
	out := map[at]Block{}
	for _, blocks := range m.blocks {
		for k, b := range blocks {
			out[k] = b
		}
	}
	return out
}

// drain reads until nothing is left to read.
func (m *mirror) drain(t testing.TB, w *Watcher) {
	t.Helper()
	var b Batch
	for {
		wake, done := w.step(&b)
		if done {
			if err := m.apply(&b); err != nil {
				t.Fatal(err)
			}
		} else if wake != nil {
			return
		}
	}
}

// read waits for one batch and applies it.
func (m *mirror) read(t testing.TB, w *Watcher, b *Batch) {
	t.Helper()
	if err := w.Next(context.Background(), b); err != nil {
		t.Fatal(err)
	}
	if err := m.apply(b); err != nil {
		t.Fatal(err)
	}
}

func prefixOf(d block.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }
