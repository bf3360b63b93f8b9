// Package residency knows which block is where on this host: in the daemon's own tiers, as its
// store tells, and in its engines' caches, as they report. It tells that to any number of watchers:
// a snapshot, then numbered changes.
//
// # Holders
//
// Whoever has blocks is a holder with a number: the daemon's tiers are holder 1, and every start of
// an engine is a holder of its own. No number is used twice. An engine that starts anew therefore
// leaves nothing to clear block by block: its old holder is gone, in constant time here and in one
// event for a watcher.
//
// # Watching
//
// A watcher has a place in one ring of changes that all share, and no queue. What it reads says of
// a block in which tiers its holder has it now, all of them, so that reading something twice does
// no harm. A snapshot is read some slots of a table at a time, and changes since its beginning are
// read between; as each change is at least as new as what of its block was read before it began,
// both end in the same state. A watcher that the ring has overtaken is told to forget everything
// and given a new snapshot; the others notice nothing.
//
// # Positions
//
// The router's index wants to know of a block the number that it has in its prompt, and the leader
// of its group of GroupBlocks blocks. Both follow from the parents' links: a block without parent
// is the first of its chain (or its writer does not know better), and one behind a known block
// comes after it. What comes before its parent waits, and is told of again once the parent is
// known. A block whose position is not known has position 0, and counts for nobody until it is.
//
// # Cost
//
// A block takes 40 bytes and a bucket of 4, without pointers: 8 bytes of its digest are enough
// here, the daemon's tiers have all of it. A change takes a few cache misses (among a million
// blocks 160 ns where they come in order, 260 ns scattered; BenchmarkApply, on a quiet machine)
// under one lock, which nobody holds for longer than it takes to copy 256 blocks.
package residency

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Tiers is a set of places where a holder has a block.
type Tiers uint8

// The tiers. Shared is what an engine's holder can reach outside of this host.
const (
	Device Tiers = 1 << iota
	Host
	Disk
	Shared

	anyTier = Device | Host | Disk | Shared

	// Pinned is no tier but goes with those of an engine's block: the engine says that it will not
	// evict it.
	Pinned Tiers = 1 << 4
)

// Name is the first 8 bytes of a digest, by which a block is told from others here, and to
// watchers. Digests of tokens are hashes: among the four million blocks that there may be, two of a
// namespace have one name once in two million times. Of those, and of what a client makes up to
// that end, routing takes one for the other; which bytes a block has does not depend on it.
type Name [8]byte

// NameOf is the name of the block with a digest.
func NameOf(d *block.Digest) Name { return Name(d[:len(Name{})]) }

// GroupBlocks is how many consecutive blocks of a chain share a leader, which is the first of them.
const GroupBlocks = 16

// Errors of Report.
var (
	// ErrGap says that reports before this one are missing, or that the engine is not known: it has
	// to report everything anew.
	ErrGap = errors.New("residency: reports before this one are missing")
	// ErrStale says that a later start of the engine has reported already.
	ErrStale = errors.New("residency: the engine has started anew since")
	// ErrReport says that a report is malformed.
	ErrReport = errors.New("residency: malformed report")
	// ErrEngines says that MaxEngines engines report already.
	ErrEngines = errors.New("residency: too many engines")
)

// Options of an Index. The zero value of each field means its default.
type Options struct {
	// of all holders together; default 2^22. A block beyond is not told of, and counted in
	// Stats.Overflow
	MaxBlocks  int
	MaxEngines int // that report at a time; default 64
	Ring       int // changes that a watcher may be behind, rounded up to a power of two; default 65,536, each 40 bytes
}

// Index is what is where. All methods may be called by any number of goroutines.
type Index struct {
	epoch      uint64
	maxBlocks  int
	maxEngines int
	seeds      [2]uint64 // of the tables' hashes

	reports sync.Mutex // taken before mu

	mu         sync.Mutex // of all that follows; held for some hundred blocks at most
	own        *holder
	holders    map[uint32]*holder
	engines    map[string]*holder
	last       uint32 // number given to a holder
	blocks     int
	namespaces namespaces
	chains     chains
	ring       ring
	stats      Stats
}

// holder is somebody who has blocks.
type holder struct {
	Holder
	heldBlocks
	spaces  []uint32          // blocks by namespace
	usage   *usage            // of an engine
	waiting map[uint64]uint32 // by the parent that is not known: the first of the blocks that wait for it
	hand    uint32            // slot looked at last for one that gives way
	next    uint64            // number of the report that is due
	heard   time.Time         // when an engine reported last
}

// New makes an empty index. Its epoch is the time.
func New(o Options) *Index {
	if o.MaxBlocks <= 0 {
		o.MaxBlocks = 1 << 22
	}
	if o.MaxEngines <= 0 {
		o.MaxEngines = 64
	}
	if o.Ring <= 0 {
		o.Ring = 1 << 16
	}
	x := &Index{
		epoch:      uint64(time.Now().UnixNano()),
		maxBlocks:  o.MaxBlocks,
		maxEngines: o.MaxEngines,
		seeds:      [2]uint64{rand.Uint64(), rand.Uint64()},
		chains:     newChains(),
		holders:    map[uint32]*holder{},
		engines:    map[string]*holder{},
		namespaces: newNamespaces(),
		ring:       newRing(o.Ring),
	}
	x.own = x.join("", x.epoch)
	return x
}

// Epoch is what tells this index's numbers from those of the daemon's other starts.
func (x *Index) Epoch() uint64 { return x.epoch }

// Stats of an index.
type Stats struct {
	Blocks     int64  // of all holders
	OwnBlocks  int64  // of the daemon's tiers
	Engines    int64  // that report
	Watchers   int64  // that watch now
	Namespaces int64  // that blocks are of, or were until short
	Waiting    int64  // parents that are not known and that blocks wait for
	Bytes      int64  // of tables and ring
	Changes    uint64 // told since the start
	Resyncs    uint64 // of watchers that the ring had overtaken
	Overflow   uint64 // blocks that were not told of because of MaxBlocks, or of too many namespaces
	Displaced  uint64 // blocks not pinned that a pinned one took the place of at MaxBlocks
	Pinned     int64  // blocks that engines say they will not evict
	Lost       uint64 // blocks whose position stays unknown because too many wait
	Restarts   uint64 // engines' holders that a later one has replaced
	Expired    uint64 // engines that were not heard of any more
}

// Stats counts what is there.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.stats
	st.Blocks, st.OwnBlocks = int64(x.blocks), int64(x.own.count)
	st.Engines, st.Namespaces = int64(len(x.engines)), int64(len(x.namespaces.byID))
	st.Waiting, st.Changes = int64(x.chains.waiting), x.ring.last
	st.Bytes = x.ring.bytes() + chainBytes
	for _, h := range x.holders {
		st.Bytes += h.bytes()
	}
	return st
}

// Change is news of the daemon's own tiers.
type Change struct {
	Addr      block.Addr
	Namespace string       // canonical text whose ID is Addr.Model
	Parent    block.Digest // zero: none
	Tier      Tiers        // Host or Disk
	Present   bool
}

// Apply takes in what the store has done. It may be called under the store's lock. Blocks of keys
// that clients chose themselves are of no prompt, and not kept here.
func (x *Index) Apply(c *Change) {
	if block.OfKeys(c.Namespace) {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	ns, ok := x.space(c.Addr.Model, c.Namespace, c.Present)
	if !ok {
		return
	}
	n := news{digest: &c.Addr.Digest, parent: prefix(&c.Parent), layer: c.Addr.Layer, namespace: ns}
	if c.Present {
		n.add = c.Tier & anyTier
	} else {
		n.remove = c.Tier
	}
	x.set(x.own, &n)
	x.settle(settleStep)
}

// space is the number of a namespace. One that is not known is taken in if the news is of a block
// that is present.
func (x *Index) space(id block.ModelID, text string, present bool) (uint16, bool) {
	ns, ok := x.namespaces.find(id)
	if !ok && present {
		if ns, ok = x.namespaces.add(id, text, x.ring.oldest()); !ok {
			x.stats.Overflow++
		}
	}
	return ns, ok
}

// Held adds to out[i] in which tiers engines have block i of a namespace and layer. Out is as long
// as digests.
func (x *Index) Held(model block.ModelID, layer uint32, digests []block.Digest, out []Tiers) {
	const atOnce = 128
	for len(digests) > 0 {
		n := min(len(digests), atOnce)
		if !x.held(model, layer, digests[:n], out) {
			return
		}
		digests, out = digests[n:], out[n:]
	}
}

func (x *Index) held(model block.ModelID, layer uint32, digests []block.Digest, out []Tiers) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns, ok := x.namespaces.find(model)
	if !ok || len(x.engines) == 0 {
		return false
	}
	for _, h := range x.engines {
		if int(ns) >= len(h.spaces) || h.spaces[ns] == 0 {
			continue
		}
		for i := range digests {
			if slot := h.find(&digests[i], ns, layer); slot != 0 {
				out[i] |= h.at(slot).tiers // Pinned included
			}
		}
	}
	return true
}
