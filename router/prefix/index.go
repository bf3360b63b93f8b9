package prefix

import (
	"sync"
	"time"
)

// Options of an Index. The zero value of each field means its default.
type Options struct {
	// MaxBlocks bounds the index: when it holds more it is pruned to 0.8 of
	// that, oldest first, and until then new blocks replace old ones. A block
	// held by more than three nodes counts more than once. Default 2^20, which
	// is 40 MiB when full.
	MaxBlocks int
	// Lifetime is how long an untouched block is believed to stay cached before
	// anything has been learned about its node. Default 120 s.
	Lifetime time.Duration
	// MinLifetime and MaxLifetime bound what is learned. Defaults 1 s and 24 h;
	// the latter is at most 48 h.
	MinLifetime, MaxLifetime time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
}

func (o Options) withDefaults() Options {
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = 1 << 20
	}
	if o.Lifetime <= 0 {
		o.Lifetime = 120 * time.Second
	}
	if o.MinLifetime <= 0 {
		o.MinLifetime = time.Second
	}
	if o.MaxLifetime <= 0 {
		o.MaxLifetime = 24 * time.Hour
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Index holds the beliefs about which node has which block cached. Match may be
// called by any number of goroutines and never waits; the other calls serialise
// in short steps. The caller closes it.
type Index struct {
	opts  Options
	clock clock
	table *table
	nodes []node // by place

	mu      sync.Mutex
	free    [maxNodes / 64]uint64 // places nobody has
	left    []uint32              // places that wait for a sweep
	ids     map[uint32]string     // node ids by place
	learned map[string]int32      // lifetimes by node id, ms

	sweeper sweeper
}

// NewIndex makes an empty index and starts the goroutine that prunes it.
func NewIndex(o Options) *Index {
	x := newIndex(o)
	x.startSweeper()
	return x
}

func newIndex(o Options) *Index {
	o = o.withDefaults()
	x := &Index{
		opts:    o,
		clock:   clock{epoch: o.Now(), now: o.Now},
		table:   newTable(o.MaxBlocks),
		nodes:   make([]node, maxNodes),
		ids:     map[uint32]string{},
		learned: map[string]int32{},
	}
	for i := range x.free {
		x.free[i] = ^uint64(0)
	}
	return x
}

// Len is the number of blocks in the index.
func (x *Index) Len() int { return int(x.table.used.Load()) }

// walker is one candidate on its way down the chain.
type walker struct {
	candidate int32
	page      uint32
	lane      uint8
	lifetime  int32 // ms
	floor     stamp // the latest birth among the blocks so far
}

// Match writes into matched, which is as long as refs, how many leading blocks
// of the prompt each node is believed to hold now. It hashes no deeper than some
// candidate holds, plus one block, and returns the number of blocks hashed. It
// takes no lock, and does not allocate once c has seen as many candidates and
// blocks before.
func (x *Index) Match(c *Chain, refs []Ref, matched []int32) int {
	now, nowMillis := x.clock.nowStamp()
	walk := c.walk[:0]
	for i, ref := range refs {
		matched[i] = 0
		n := x.node(ref)
		if n == nil || n.silent.Load() {
			continue
		}
		walk = append(walk, walker{
			candidate: int32(i), page: ref.page(), lane: uint8(ref.lane()),
			lifetime: n.lifetime.Load(), floor: n.oldest(now, nowMillis),
		})
	}
	c.walk = walk
	for i := 0; i < c.blocks && len(walk) > 0; i++ {
		walk = x.step(walk, c.key(i), now)
		for k := range walk {
			matched[walk[k].candidate]++
		}
	}
	return len(c.digests)
}

// step keeps the walkers whose node holds the block too.
func (x *Index) step(walk []walker, block uint64, now stamp) []walker {
	var lanes [lanesPerPage]belief
	page := ^uint32(0)
	kept := 0
	for k := range walk {
		w := &walk[k]
		if w.page != page {
			page = w.page
			x.table.lanes(pageKey(block, page), &lanes)
		}
		b := lanes[w.lane&laneMask]
		if b == 0 || since(now, b.touched()) > w.lifetime || since(b.touched(), w.floor) < 0 {
			continue
		}
		w.floor = later(w.floor, b.born())
		if kept != k {
			walk[kept] = *w
		}
		kept++
	}
	return walk[:kept]
}
