// Package residency is the index of the blocks that nodes report. The index's input is changes: a
// block was stored, a block was removed, all blocks were cleared. The index answers how many
// leading blocks of a prompt each node has.
//
// # Who feeds it
//
// router/holdings feeds the index with the streams of the hosts' cache daemons. One goroutine per
// daemon applies the batches of each of its nodes in order. In this index a node is some tiers of a
// daemon, or the memory of an engine that reports to a daemon. For the memory of other engines
// router/prefix has a prediction.
//
// Engines name blocks by hashes of their own. A reader of an engine's events computes digests from
// the tokens. To find the parents of stored blocks, and removed blocks, the reader needs a table
// per node. The table leads from the engine's name of a block to its key and digest. In a Go map
// the keys alone take 34 bytes per block. Filling the table takes more time than the index does
// (perf/RESULTS.md), so it belongs beside the engine. The index has no such table, because a key
// contains the block's group and its place in the group.
//
// # What is held
//
// Sixteen consecutive blocks make a group. One row of 208 bytes has a bit for each block of the
// group and each of up to 64 nodes. Rows of a prompt are adjacent, so storing and looking up cost
// at most about one cache miss per group. With the map to the rows a block takes 15 to 16 bytes in
// long prompts. When prompts part within a group, one of them keeps the row. The blocks of the
// others, up to the group's end, are single and take 23 to 35 bytes each. Further nodes share
// further tables.
//
// The result of Lookup is exact for any order of changes. A missing block ends the count. The
// blocks behind a missing block count again once it is back.
package residency

import (
	"cmp"
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
)

// These are the errors of Apply and Restart. After ErrGap apply the missing batches first, or begin
// the node anew with Restart.
var (
	ErrLeft = errors.New("residency: the node has left the index")
	ErrGap  = errors.New("residency: batches before this one are missing: replay them or restart the node")
	ErrSeen = errors.New("residency: a batch of this or a later number has been applied")
)

// Options are the settings of an Index. A zero value means the default.
type Options struct {
	// MaxBlocks bounds the blocks in all tables. Beyond MaxBlocks a block is refused, together with
	// the blocks that would follow it, until other blocks have been removed. Stats counts the
	// refused blocks. Default 2^22, for which full tables take about 65 MB.
	MaxBlocks int
}

// Index says which node holds which blocks. Any number of goroutines may call Lookup, which never
// waits. The other calls take a lock in short steps.
type Index struct {
	max    int                     // in blocks
	at     [MaxNodes]atomic.Uint64 // place of each node: epoch, generation, place; 0 = none
	shards [maxShards]shard

	opened atomic.Int32 // shards in use so far; only a holder of mu changes it

	mu       sync.Mutex // guards the fields below and writing to tables
	streams  [MaxNodes]nodeBatches
	present  int // nodes
	low      int // all nodes below are present
	epoch    uint64
	held     int      // blocks in all tables
	unswept  shardSet // shards with places that wait for a sweep
	overflow uint64
}

// MaxNodes bounds the nodes that are present at a time: 1,024 hosts with one configuration and 10
// engines each that use their host's memory, if an engine has three nodes.
const MaxNodes = shardNodes * maxShards

const (
	shardNodes = 64 // nodes per shard, the holders in a slot
	maxShards  = 512
	nodeBits   = 15 // bits of a node number below MaxNodes
	genBits    = 17
)

// shardSet is a set of shards.
type shardSet [maxShards / 64]uint64

func (s *shardSet) add(shard int)    { s[shard/64] |= 1 << (shard % 64) }
func (s *shardSet) remove(shard int) { s[shard/64] &^= 1 << (shard % 64) }

// first returns the first shard of the set; ok is false if the set is empty.
func (s *shardSet) first() (shard int, ok bool) {
	for i, word := range s {
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word), true
		}
	}
	return 0, false
}

// shard is the table of up to 64 nodes.
type shard struct {
	table  atomic.Pointer[holderTable]
	number int

	taken uint64 // places of present nodes
	left  uint64 // places that wait for a sweep
	sweep sweep
}

// nodeBatches is the state of a node's batches.
type nodeBatches struct {
	gen     uint32
	started bool
	next    uint64 // number of the expected batch
}

// Ref identifies one stay of a node in the index; 0 is none. Ref becomes invalid for good when the
// node leaves.
type Ref uint32

func (r Ref) node() int   { return int(r & (MaxNodes - 1)) }
func (r Ref) gen() uint64 { return uint64(r >> nodeBits) }

// whereabouts is the place of a node's blocks: a unique epoch, the generation of the node's Ref,
// and its place.
type whereabouts uint64

func (w whereabouts) gen() uint64 { return uint64(w) >> nodeBits & (1<<genBits - 1) }
func (w whereabouts) shard() int  { return int(w) & (MaxNodes - 1) / shardNodes }
func (w whereabouts) bit() int    { return int(w) % shardNodes }

// New makes an empty index.
func New(o Options) *Index {
	o.MaxBlocks = cmp.Or(o.MaxBlocks, 1<<22)
	return &Index{max: o.MaxBlocks}
}

// where returns the whereabouts of a present node.
func (x *Index) where(ref Ref) (w whereabouts, ok bool) {
	w = whereabouts(x.at[ref.node()].Load())
	return w, ref != 0 && w.gen() == ref.gen()
}

// Room returns the number of nodes that may still join.
func (x *Index) Room() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return MaxNodes - x.present
}

// Join gives a node a place in the index, without blocks. Join returns 0 when MaxNodes nodes are
// present. Lookup finds no blocks for Ref 0, which says nothing about the node.
func (x *Index) Join() Ref {
	x.mu.Lock()
	defer x.mu.Unlock()
	for i := x.low; i < MaxNodes; i++ {
		if x.at[i].Load() != 0 {
			continue
		}
		x.present, x.low = x.present+1, i+1
		gen := max(1, (x.streams[i].gen+1)%(1<<genBits))
		x.streams[i] = nodeBatches{gen: gen}
		x.settle(i, gen)
		return Ref(gen<<nodeBits | uint32(i))
	}
	return 0
}

// Leave forgets a node in constant time. Later calls with the Ref of that node do nothing.
func (x *Index) Leave(ref Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if w, ok := x.where(ref); ok {
		x.at[ref.node()].Store(0)
		x.present, x.low = x.present-1, min(x.low, ref.node())
		x.abandon(w)
	}
}

// Restart forgets the blocks of a node in constant time. The node's next batch must have the number
// next. Restart begins a new report: apply a snapshot as the batch with that number.
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

// clear moves a node to an empty place. clear returns the node's shard and holder bit.
func (x *Index) clear(ref Ref, w whereabouts) (*shard, uint64) {
	x.at[ref.node()].Store(0) // settle may find the same place again; a reader must not mix old and new blocks
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

// roomyShard returns a shard with a free place: an open one, a new one, or one that it sweeps now.
// Such a shard always exists, because there are at least as many places as nodes.
func (x *Index) roomyShard() int {
	opened := int(x.opened.Load())
	for i := range opened {
		if s := &x.shards[i]; s.taken|s.left != ^uint64(0) {
			return i
		}
	}
	if opened < maxShards {
		x.shards[opened].number = opened
		x.shards[opened].table.Store(newHolderTable(x.max))
		x.opened.Store(int32(opened + 1))
		return opened
	}
	x.sweepAll()
	return x.roomyShard()
}

// abandon gives a place up. A later sweep removes the blocks of that place. A shard drops its table
// with its last node.
func (x *Index) abandon(w whereabouts) {
	s := &x.shards[w.shard()]
	s.taken &^= 1 << w.bit()
	s.left |= 1 << w.bit()
	x.unswept.add(s.number)
	if s.taken == 0 {
		x.held -= s.table.Load().blocks
		s.table.Store(newHolderTable(x.max))
		s.left, s.sweep = 0, sweep{}
		x.unswept.remove(s.number)
	}
}

// Stats are the counts of an index.
type Stats struct {
	// Nodes and Blocks are the numbers in the index. A block counts once for each table that holds
	// the block; up to 64 nodes share a table.
	Nodes, Blocks int
	// Single counts the Blocks that are not stored with their group.
	Single int
	// Bytes is the size of the tables.
	Bytes int
	// Overflow counts the blocks refused for Options.MaxBlocks since the start.
	Overflow uint64
}

// Stats returns the counts as of now.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := Stats{Nodes: x.present, Blocks: x.held, Overflow: x.overflow}
	for i := range x.opened.Load() {
		t := x.shards[i].table.Load()
		st.Single += t.singles
		st.Bytes += t.bytes()
	}
	return st
}
