// Package residency is the index of a host's blocks: in the daemon's own tiers, by its store, and
// in its engines' caches, by their reports. The index streams its contents to any number of
// watchers: a snapshot, then numbered changes.
//
// # Holders
//
// A holder has blocks, and has a number. The daemon's tiers are holder 1, and every incarnation of
// an engine is a holder of its own. No number is used twice. So nothing has to be cleared block by
// block when an engine restarts. The engine's old holder goes in constant time here, and with one
// event for a watcher.
//
// # Watching
//
// All watchers share one ring of changes. A watcher has a place in the ring and no queue. A change
// gives all tiers in which its holder now has a block, so reading it twice does no harm. A watcher
// reads a snapshot some slots of a table at a time, with the changes since its beginning in
// between. Each change is at least as new as an earlier read of its block, so the watcher ends in
// the right state. A watcher that the ring has overtaken must forget everything and gets a new
// snapshot. Watchers that the ring has not overtaken notice nothing.
//
// # Positions
//
// The router's index needs the number of a block in its prompt, and the leader of its group of
// GroupBlocks blocks. Number and leader follow from the links to the parents. A block without a
// parent is the first of its chain, as far as its writer knows. A block behind a known block has
// the next number. A block that comes before its parent waits and is told again once the parent is
// known. A block of unknown position has position 0 and does not count until its position is known.
//
// # Objects
//
// An object of the daemon's tiers stands for one block, or for several if its namespace has more
// than 16 tokens per object. Such an object carries the names of the blocks before its last one,
// and counts as all its blocks (objects.go). An object of a namespace with several ranks is a part
// of its blocks. A block counts for routers if every rank has it (ranks.go).
//
// # Readers
//
// The digests of blocks are the same in namespaces of other weights or data types. An engine says
// which namespaces it can read, and watchers get the list with each change (readers.go).
//
// # Cost
//
// A block takes 40 bytes and a bucket of 4, without pointers. 8 bytes of its digest are enough
// here; the daemon's tiers have the whole digest. A change costs a few cache misses under one lock.
// Among a million blocks a change costs 160 ns in order and 260 ns scattered (BenchmarkApply, on a
// quiet machine). The lock is never held for longer than a copy of 256 blocks takes.
package residency

import (
	"cmp"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Tiers is a set of tiers in which a holder has a block.
type Tiers uint8

// These are the tiers. Shared is memory outside of this host that an engine's holder can reach.
const (
	Device Tiers = 1 << iota
	Host
	Disk
	Shared

	anyTier = Device | Host | Disk | Shared

	// Pinned is no tier. Pinned is set together with an engine's tiers: the engine will not evict
	// the block.
	Pinned Tiers = 1 << 4
)

// Name identifies a block here and to watchers. Digests of tokens are hashes. Among the four
// million possible blocks of a namespace, two have the same name in one case of two million.
// Routing confuses two blocks with one name, and also names that a client constructs for that
// purpose. The bytes of a block do not depend on names.
type Name = block.Name

// GroupBlocks is the number of consecutive blocks of a chain with a common leader, which is the
// first of them.
const GroupBlocks = 16

// These are the errors of Report.
var (
	// ErrGap says that earlier reports are missing, or that the engine is unknown. The engine must
	// report everything anew.
	ErrGap = errors.New("residency: reports before this one are missing")
	// ErrStale says that a later incarnation of the engine has already reported.
	ErrStale = errors.New("residency: the engine has started anew since")
	// ErrReport says that a report is malformed.
	ErrReport = errors.New("residency: malformed report")
	// ErrEngines says that MaxEngines engines already report.
	ErrEngines = errors.New("residency: too many engines")
)

// Options are the settings of an Index. A zero value means the default.
type Options struct {
	// limit on the blocks of all holders together; default 2^22. A further block is left out and
	// counted in Stats.Overflow
	MaxBlocks  int
	MaxEngines int // limit on engines that report at once; default 64
	Ring       int // changes that a watcher may be behind, rounded up to a power of two; default 65,536, each 40 bytes
}

// Index is the index of a host's blocks. Any number of goroutines may call its methods.
type Index struct {
	epoch      uint64
	maxBlocks  int
	maxEngines int
	seeds      [2]uint64 // for the tables' hashes

	reports sync.Mutex // taken before mu; guards checked and ids
	checked checked
	ids     []block.ModelID // of the events of the report that is being checked

	mu          sync.Mutex // guards all fields below; held for some hundred blocks at most
	own         *holder
	holders     map[uint32]*holder
	engines     map[string]*holder
	readers     map[string][]reading // by node
	presentNext time.Time            // before, watchers are told of no change of the namespaces with blocks
	presentLate bool                 // the namespaces with blocks have changed, and watchers were not told
	last        uint32               // last number of a holder
	blocks      int
	namespaces  namespaces
	chains      chains
	ring        ring
	stats       Stats
}

// holder has blocks: the daemon's tiers, or one incarnation of an engine.
type holder struct {
	Holder
	heldBlocks
	spaces  []uint32          // number of blocks by namespace
	usage   *usage            // of an engine; nil for the daemon's tiers
	waiting map[uint64]uint32 // by unknown parent: the first of the blocks that wait for it
	shared  map[uint32]shares // by slot, where objects are not those that shares.implied says
	hand    uint32            // last slot searched for a block that gives way
	next    uint64            // number of the next report
	heard   time.Time         // time of an engine's last report
	reads   []string          // what the engine's reports say that it reads
}

// New makes an empty index. The index's epoch is the present time.
func New(o Options) *Index {
	o.MaxBlocks, o.MaxEngines, o.Ring = cmp.Or(o.MaxBlocks, 1<<22), cmp.Or(o.MaxEngines, 64), cmp.Or(o.Ring, 1<<16)
	x := &Index{
		epoch:      uint64(time.Now().UnixNano()),
		maxBlocks:  o.MaxBlocks,
		maxEngines: o.MaxEngines,
		seeds:      [2]uint64{rand.Uint64(), rand.Uint64()},
		chains:     newChains(),
		checked:    checked{},
		holders:    map[uint32]*holder{},
		engines:    map[string]*holder{},
		readers:    map[string][]reading{},
		namespaces: newNamespaces(),
		ring:       newRing(o.Ring),
	}
	x.own = x.join("", x.epoch)
	return x
}

// Epoch distinguishes this index's numbers from those of the daemon's other incarnations.
func (x *Index) Epoch() uint64 { return x.epoch }

// Stats are the counts of an index.
type Stats struct {
	Blocks     int64  // of all holders
	OwnBlocks  int64  // of the daemon's tiers
	Engines    int64  // reporting engines
	Watchers   int64  // present watchers
	Namespaces int64  // namespaces of blocks, with recent ones
	Waiting    int64  // unknown parents that blocks wait for
	Bytes      int64  // of tables and ring
	Changes    uint64 // changes since the start
	Resyncs    uint64 // resynchronizations of watchers that the ring had overtaken
	Overflow   uint64 // blocks left out because of MaxBlocks or too many namespaces
	Displaced  uint64 // unpinned blocks replaced by pinned ones at MaxBlocks
	Pinned     int64  // blocks that engines will not evict
	Lost       uint64 // blocks of unknown position because too many wait
	Restarts   uint64 // engines' holders replaced by a later one
	Expired    uint64 // engines forgotten after a silence

	Readers      int64  // nodes that say what they read, over the lease socket or in their reports
	ReadsRefused uint64 // namespaces not noted because of MaxReaders or MaxReads
}

// Stats returns the counts as of now.
func (x *Index) Stats() Stats {
	x.mu.Lock()
	defer x.mu.Unlock()
	st := x.stats
	st.Blocks, st.OwnBlocks = int64(x.blocks), int64(x.own.count)
	st.Engines, st.Namespaces = int64(len(x.engines)), int64(len(x.namespaces.byID))
	st.Waiting, st.Changes = int64(x.chains.waiting), x.ring.last
	st.Readers = int64(x.countReaders())
	st.Bytes = x.ring.bytes() + chainBytes
	for _, h := range x.holders {
		st.Bytes += h.bytes() + int64(len(h.shared))*sharesBytes
	}
	return st
}

// Change is a change in the daemon's own tiers.
type Change struct {
	Addr      block.Addr
	Namespace string       // canonical text whose ID is Addr.Model
	Parent    block.Digest // zero: none
	// Names are those of the object's blocks before the last one (block.ParseNames); nil: none.
	// Apply does not keep the slice.
	Names   []byte
	Tier    Tiers // Host or Disk
	Present bool
	Length  int // of the payload in bytes; 0: unknown
}

// Apply applies a change of the store. Apply may be called under the store's lock. Apply ignores
// blocks of client keys, because they belong to no prompt. Apply also ignores objects of more than
// 16 tokens without names, because their blocks would have wrong positions.
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
	n := news{own: prefix(&c.Addr.Digest), parent: prefix(&c.Parent), layer: c.Addr.Layer, namespace: ns}
	if c.Present {
		if c.Length > 0 {
			x.namespaces.list[ns].bytes = uint64(c.Length)
		}
		n.add = c.Tier & anyTier
	} else {
		n.remove = c.Tier
	}
	switch blocks := x.namespaces.list[ns].blocks; {
	case blocks == 1:
		x.set(x.own, &n)
	case blocks > 1:
		x.setObject(&n, c.Names, blocks)
	}
	x.settle(settleStep)
}

// space returns the number of a namespace. space adds an unknown namespace if the news is of a
// present block.
func (x *Index) space(id block.ModelID, text string, present bool) (uint16, bool) {
	ns, ok := x.namespaces.find(id)
	if !ok && present {
		if ns, ok = x.namespaces.add(id, text, x.ring.oldest()); !ok {
			x.stats.Overflow++
		}
	}
	return ns, ok
}

// Held adds to out[i] the tiers in which engines have block i of a namespace and layer. out is as
// long as digests.
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
			if slot := h.find(prefix(&digests[i]), ns, layer); slot != 0 {
				out[i] |= h.at(slot).tiers // Pinned included
			}
		}
	}
	return true
}
