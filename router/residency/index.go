// Package residency is the index of what nodes have announced to hold: it is fed with changes (a
// block was stored, a block was removed, all blocks were cleared) and answers how many leading
// blocks of a prompt each node has.
//
// # Who feeds it
//
// router/holdings, with what the hosts' cache daemons stream: one goroutine per daemon, with the
// batches of each of its nodes in their order. A node is there some tiers of a daemon, or the
// memory of an engine that reports to one. Of the memory of other engines router/prefix has a
// prediction.
//
// Engines name blocks by hashes of their own. Whoever reads an engine's events computes digests
// from the tokens, and needs for it, per node, the key and the digest of each block by the engine's
// name: for the parents of what is stored, and for what is removed. Those tables, 34 bytes per
// block in a Go map for the keys alone, belong beside the engine; filling them takes more time than
// the index does (perf/RESULTS.md). The index has none: a key says by itself in which group the
// block is, and where.
//
// # What is held
//
// Sixteen consecutive blocks make a group, and what up to 64 nodes hold of it is one row of 208
// bytes with a bit for each node and block. Rows of a prompt lie one after the other, so that
// storing and looking up cost about one cache miss per group, or none. With the map that leads to
// the rows a block takes 15 to 16 bytes where prompts are long. Where prompts part within a group,
// the blocks of all but one of them up to the group's end are single: they take 23 to 35 bytes
// each. Further nodes share further tables.
//
// What Lookup says is exact, in whatever order blocks were stored and removed: a missing block ends
// what counts, and what is behind it counts again once the block is back.
package residency

import (
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Errors of Apply and Restart. After ErrGap the missing batches are to be applied first, or
// the node is to be told of anew from Restart on.
var (
	ErrLeft = errors.New("residency: the node has left the index")
	ErrGap  = errors.New("residency: batches before this one are missing: replay them or restart the node")
	ErrSeen = errors.New("residency: a batch of this or a later number has been applied")
)

// Options of an Index. The zero value of each field means its default.
type Options struct {
	// MaxBlocks bounds the blocks in all tables. A block beyond that is refused, and with it
	// what would follow it, until other blocks have been removed; Stats counts them.
	// Default 2^22, for which the tables take about 65 MB once they are that full.
	MaxBlocks int
}

// Index says which node holds which blocks. Lookup may be called by any number of
// goroutines and never waits; the other calls serialise in short steps.
type Index struct {
	max    int                     // blocks
	at     [maxNodes]atomic.Uint64 // where a node is: epoch, generation, place; 0 = nobody
	shards [maxShards]shard

	mu       sync.Mutex // of what follows, and of writing to tables
	streams  [maxNodes]nodeBatches
	epoch    uint64
	opened   int    // shards that have been used
	unswept  uint64 // shards with places that wait for a sweep
	overflow uint64
}

const (
	shardNodes = 64 // holders of a slot
	maxShards  = 64
	maxNodes   = shardNodes * maxShards
	nodeBits   = 12 // of maxNodes
	genBits    = 20
)

// shard is the table of up to 64 nodes.
type shard struct {
	table  atomic.Pointer[holderTable]
	number int

	taken uint64 // places of nodes
	left  uint64 // places that wait for a sweep
	sweep sweep
}

// nodeBatches is what is known of a node's batches.
type nodeBatches struct {
	gen     uint32
	started bool
	next    uint64 // number of the batch that is due
}

// Ref names one stay of a node in the index; 0 is none. It becomes invalid for good when
// the node leaves.
type Ref uint32

func (r Ref) node() int   { return int(r & (maxNodes - 1)) }
func (r Ref) gen() uint64 { return uint64(r >> nodeBits) }

// whereabouts is where a node's blocks are: the epoch, which no other has, the
// generation of its Ref, and its place.
type whereabouts uint64

func (w whereabouts) gen() uint64 { return uint64(w) >> nodeBits & (1<<genBits - 1) }
func (w whereabouts) shard() int  { return int(w) & (maxNodes - 1) / shardNodes }
func (w whereabouts) bit() int    { return int(w) % shardNodes }

// New makes an empty index.
func New(o Options) *Index {
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = 1 << 22
	}
	return &Index{max: o.MaxBlocks}
}

// where is the whereabouts of a node that has not left.
func (x *Index) where(ref Ref) (w whereabouts, ok bool) {
	w = whereabouts(x.at[ref.node()].Load())
	return w, ref != 0 && w.gen() == ref.gen()
}

// Join gives a node a place in the index, with no block. It returns 0, which is believed to
// hold nothing, when 4,096 nodes are present.
func (x *Index) Join() Ref {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := range x.at {
		if x.at[i].Load() != 0 {
			continue
		}
		gen := max(1, (x.streams[i].gen+1)%(1<<genBits))
		x.streams[i] = nodeBatches{gen: gen}
		x.settle(i, gen)
		return Ref(gen<<nodeBits | uint32(i))
	}
	return 0
}

// Leave forgets a node in constant time. Every later call with its Ref does nothing.
func (x *Index) Leave(ref Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w, ok := x.where(ref); ok {
		x.at[ref.node()].Store(0)
		x.abandon(w)
	}
}

// Restart forgets the blocks of a node in constant time; the next batch that it takes has the
// number next. It begins what is told anew: a snapshot is the batch with its number.
func (x *Index) Restart(ref Ref, next uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, ok := x.where(ref)
	if !ok {
		return ErrLeft
	}
	x.clear(ref, w)
	s := &x.streams[ref.node()]
	s.started, s.next = true, next
	return nil
}

// clear moves a node to a place where nothing is held, and returns its shard and holder bit.
func (x *Index) clear(ref Ref, w whereabouts) (*shard, uint64) {
	x.at[ref.node()].Store(0) // if the place left is the one found, no reader may mix the two
	x.abandon(w)
	w = x.settle(ref.node(), uint32(ref.gen()))
	return &x.shards[w.shard()], 1 << w.bit()
}

// settle gives a node a place.
func (x *Index) settle(node int, gen uint32) whereabouts {
	s := x.roomyShard()
	bit := bits.TrailingZeros64(^(x.shards[s].taken | x.shards[s].left))
	x.shards[s].taken |= 1 << bit
	x.epoch++
	w := whereabouts(x.epoch<<32 | uint64(gen)<<nodeBits | uint64(s*shardNodes+bit))
	x.at[node].Store(uint64(w))
	return w
}

// roomyShard is a shard with a free place: an open one, a new one, or one that is swept now.
// There is one, as nodes are not more than places.
func (x *Index) roomyShard() int {
	for i := range x.opened {
		if s := &x.shards[i]; s.taken|s.left != ^uint64(0) {
			return i
		}
	}
	if x.opened < maxShards {
		x.shards[x.opened].number = x.opened
		x.shards[x.opened].table.Store(newHolderTable(x.max))
		x.opened++
		return x.opened - 1
	}
	x.sweepAll()
	return x.roomyShard()
}

// abandon gives up a place: what is held there is swept later. With its last node
// a shard drops its table.
func (x *Index) abandon(w whereabouts) {
	s := &x.shards[w.shard()]
	s.taken &^= 1 << w.bit()
	s.left |= 1 << w.bit()
	x.unswept |= 1 << w.shard()
	if s.taken == 0 {
		s.table.Store(newHolderTable(x.max))
		s.left, s.sweep = 0, sweep{}
		x.unswept &^= 1 << s.number
	}
}

// blocks is the number of blocks in all tables.
func (x *Index) blocks() (n int) {
	for i := range x.opened {
		n += x.shards[i].table.Load().blocks
	}
	return n
}

// Stats of an index.
type Stats struct {
	// Nodes and Blocks are those in the index. A block counts once for each table that
	// it is in, which is one for up to 64 nodes.
	Nodes, Blocks int
	// Single is the part of Blocks that are not stored with their group.
	Single int
	// Bytes is the size of the tables.
	Bytes int
	// Overflow is the blocks refused since the start because of Options.MaxBlocks.
	Overflow uint64
}

// Stats counts what is there.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := Stats{Blocks: x.blocks(), Overflow: x.overflow}
	for i := range x.opened {
		t := x.shards[i].table.Load()
		st.Nodes += bits.OnesCount64(x.shards[i].taken)
		st.Single += t.singles
		st.Bytes += t.bytes()
	}
	return st
}
