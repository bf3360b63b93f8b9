package prefix

import (
	"cmp"
	"sync"
	"time"
)

// Options are the settings of an Index. A zero value means the default.
type Options struct {
	// MaxBlocks bounds the index. Beyond MaxBlocks the index is pruned, oldest blocks first. Until
	// the pruning new blocks replace old ones. A block counts once for every node believed to hold
	// it. Default 2^20, which takes 5 MiB.
	MaxBlocks int
	// PruneTo is the share of MaxBlocks that remains after pruning. Default 0.8.
	PruneTo float64
	// Lifetime is how long an untouched block counts as cached before its node has taught another
	// value. Default 120 s.
	Lifetime time.Duration
	// MinLifetime and MaxLifetime bound the learned lifetimes. Defaults 1 s and 24 h; MaxLifetime
	// is at most 48 h.
	MinLifetime, MaxLifetime time.Duration
	// Now is the clock. Default time.Now.
	Now func() time.Time
	// Inline prunes within the call that has filled the index and starts no goroutine. Simulations
	// need Inline to be repeatable. Simulations last less than 48 h.
	Inline bool
}

func (o Options) withDefaults() Options {
	o.MaxBlocks = cmp.Or(o.MaxBlocks, 1<<20)
	o.PruneTo = cmp.Or(o.PruneTo, 0.8)
	o.Lifetime = cmp.Or(o.Lifetime, 120*time.Second)
	o.MinLifetime = cmp.Or(o.MinLifetime, time.Second)
	o.MaxLifetime = cmp.Or(o.MaxLifetime, 24*time.Hour)
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Index holds the beliefs about which node has which block cached. Any number of goroutines may
// call Match, which never waits. The other calls take a lock in short steps. The caller closes the
// index.
type Index struct {
	o     Options
	clock clock
	table *beliefTable
	nodes []node // by place

	mu      sync.Mutex
	free    [maxNodes / 64]uint64 // free places
	left    []uint32              // places that wait for a sweep
	ids     map[uint32]string     // node ids by place
	learned map[string]int32      // learned lifetimes in ms, by node id
	writing group                 // the group that write is at

	sweeper sweeper
}

// NewIndex makes an empty index and starts the goroutine that prunes it.
func NewIndex(o Options) *Index {
	x := newIndex(o)
	if !o.Inline {
		x.startSweeper()
	}
	return x
}

func newIndex(o Options) *Index {
	o = o.withDefaults()
	x := &Index{
		o:       o,
		clock:   clock{epoch: o.Now(), now: o.Now},
		table:   newBeliefTable(o.MaxBlocks),
		nodes:   make([]node, maxNodes),
		ids:     map[uint32]string{},
		learned: map[string]int32{},
	}
	for i := range x.free {
		x.free[i] = ^uint64(0)
	}
	return x
}

// Len returns the number of blocks in the index, counted once for every node.
func (x *Index) Len() int { return int(x.table.blocks.Load()) }

// walker is one candidate on its way down the chain.
type walker struct {
	candidate int32
	place     uint32
	lifetime  int32 // ms
	oldest    stamp // oldest valid stamp of the node's beliefs
	reborn    stamp // latest rebirth at the node
	floor     stamp // latest birth among the groups found
	touched   stamp // touched stamp of the deepest group found
	there     int32 // groups up to the deepest one found held or pending
	held      int32 // groups up to the deepest one found held
	missing   int32 // the group found missing
	tags      tags  // of the deepest group found held or pending
	heldTags  tags  // of the deepest group found held
}

// Match predicts for each of refs how many leading blocks of the prompt the node holds now, and
// writes that into held. Into coming, unless nil, Match writes how many the node will hold once it
// has begun to answer its requests. Match leaves out blocks that extend a partly held group. held
// and coming are as long as refs.
//
// Match returns the number of blocks hashed, which is little more than the largest coming. Nodes
// hold prefixes, so Match skips groups of a long prompt. Match looks at each of the first few
// groups, at each of the first few groups that must be hashed, at ever fewer groups beyond, and at
// the groups where a node's beliefs end. Match looks at all groups of a node that has recomputed a
// group since the node's deepest group was last used. Match takes no lock. Match does not allocate
// once c has seen as many candidates and blocks before.
func (x *Index) Match(c *Chain, refs []Ref, held, coming []int32) int {
	now, nowMillis := x.clock.nowStamp()
	walk := c.walk[:0]
	for i, ref := range refs {
		held[i] = 0
		if coming != nil {
			coming[i] = 0
		}
		n := x.node(ref)
		if n == nil || n.silent.Load() {
			continue
		}
		oldest := n.oldest(now, nowMillis)
		walk = append(walk, walker{
			candidate: int32(i), place: ref.place(), lifetime: n.lifetime.Load(),
			oldest: oldest, floor: oldest, reborn: past(n.reborn.Load(), now, nowMillis),
		})
	}
	c.walk = walk
	on := len(walk) // the first on walkers hold all groups looked at so far
	known := min(len(c.keys)/groupBlocks, c.groups()-1)
	for g, n := 0, c.groups(); g < n && on > 0; g = stride(g, n, known) {
		on = x.step(walk[:on], c, g, now)
	}
	for k := range walk {
		w := &walk[k]
		if k >= on {
			x.narrow(w, c, now)
		}
		if w.there > skipsFrom && since(w.touched, w.reborn) < 0 {
			x.walkAll(w, c, now)
		}
		n := c.common(w.there, w.tags)
		if coming != nil {
			coming[w.candidate] = n
		}
		if w.held < w.there {
			x.divide(w, c)
			n = c.common(w.held, w.heldTags)
		}
		held[w.candidate] = n
	}
	return len(c.keys)
}

// skipsFrom is the number of groups that stride visits one by one.
const skipsFrom = 5

// common returns how many blocks the prompt shares with a node. The node has the leading groups,
// and t are the tags of the last group.
func (c *Chain) common(groups int32, t tags) int32 {
	if groups == 0 {
		return 0
	}
	last := int(groups) - 1
	return int32(last*groupBlocks + t.shared(c.tags(last), c.count(last)))
}

// stride returns the next group to look at after g: a quarter deeper, and the last one before the
// end. Behind the known groups stride counts the quarter from their end, because hashing takes
// longer than looking.
func stride(g, groups, known int) int {
	switch {
	case g == groups-1:
		return groups
	case g < known:
		return min(g+1+g/4, known)
	}
	return min(g+1+(g-known)/4, groups-1)
}

// step looks at group g of the walkers. step moves the walkers without the group to the end and
// returns the number of the remaining ones.
func (x *Index) step(walk []walker, c *Chain, g int, now stamp) int {
	leader := c.leader(g)
	nodes := x.table.sieve.nodesOf(leader)
	kept := 0
	for k := range walk {
		w := &walk[k]
		if nodes&bit(w.place) == 0 {
			w.missing = int32(g)
			continue
		}
		if !x.has(w, leader, g, now) {
			continue
		}
		if kept != k {
			walk[kept], walk[k] = walk[k], walk[kept]
		}
		kept++
	}
	return kept
}

// has looks at group g for one walker.
func (x *Index) has(w *walker, leader uint64, g int, now stamp) bool {
	b, blocks := x.table.load(leader, w.place)
	if b == 0 || since(now, b.touched()) > w.lifetime || since(b.touched(), w.floor) < 0 {
		w.missing = int32(g)
		return false
	}
	w.floor, w.touched = later(w.floor, b.born()), b.touched()
	w.there, w.tags = int32(g)+1, blocks
	if !b.pending() {
		w.held, w.heldTags = w.there, blocks
	}
	return true
}

// walkAll looks at every group that the walker seems to have. A skipped group may have been born
// after the groups below it were last used.
func (x *Index) walkAll(w *walker, c *Chain, now stamp) {
	n := int(w.there)
	w.there, w.held, w.floor = 0, 0, w.oldest
	for g := range n {
		if !x.has(w, c.leader(g), g, now) {
			return
		}
	}
}

// narrow finds the first missing group between the last group found and the missing one.
func (x *Index) narrow(w *walker, c *Chain, now stamp) {
	for w.there < w.missing {
		g := int(w.there+w.missing) / 2
		x.has(w, c.leader(g), g, now)
	}
}

// divide finds the first pending group. All groups behind the first pending one are pending too.
func (x *Index) divide(w *walker, c *Chain) {
	for pending := w.there - 1; w.held < pending; {
		g := (w.held + pending) / 2
		if b, blocks := x.table.load(c.leader(int(g)), w.place); b != 0 && !b.pending() {
			w.held, w.heldTags = g+1, blocks
		} else {
			pending = g
		}
	}
}
