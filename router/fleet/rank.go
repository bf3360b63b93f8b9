package fleet

import (
	"hash/fnv"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/prefix"
)

// Rank is one data-parallel rank of a node's engine: a part with a queue and a KV cache of its own.
// A request can name its rank. Most nodes have one rank, which has all of the node's load. The
// pointer stays the same in every snapshot while the number of the node's ranks does. All methods
// are safe for concurrent use.
type Rank struct {
	// A pick reads these fields of every rank, and the first ones of the book.
	ref      atomic.Uint32
	inFlight atomic.Int32
	others   atomic.Uint64 // Others of the load, and Waiting in the lower half
	Book     books.Book    // what this router's requests cost the rank
	Index    int           // number by which requests name the rank, from 0
	Count    int           // number of the node's ranks
	Name     string        // the node's id; with several ranks the number follows
	IDHash   uint64        // for rendezvous hashing; the same in every router
	// Header is the line by which a request names the rank; nil if the node has one rank.
	Header []byte
	node   *Node

	// These fields are for nodes with several ranks. Otherwise the node's own fields count.
	recent books.Peak // of inFlight; the node's told.mu guards its windows
	load   atomic.Pointer[Load]
}

// newRanks makes the ranks of n. The caller publishes them. The only rank of a node is part of the
// node.
func newRanks(n *Node, count int) []*Rank {
	if count < 2 {
		return []*Rank{&n.only}
	}
	all := make([]*Rank, count)
	for i := range all {
		r := &Rank{Index: i, Count: count, Name: cluster.RankName(n.ID, i), node: n}
		h := fnv.New64a()
		h.Write([]byte(r.Name))
		r.IDHash = h.Sum64()
		r.Header = []byte("X-Data-Parallel-Rank: " + strconv.Itoa(i) + "\r\n")
		r.load.Store(untold)
		all[i] = r
	}
	return all
}

// Ranks returns the node's data-parallel ranks in the order of their numbers, at least one. The
// caller must not change the slice.
func (n *Node) Ranks() []*Rank { return *n.ranks.Load() }

// Owner returns the node of the rank.
func (r *Rank) Owner() *Node { return r.node }

// Ref returns the rank's incarnation in the prefix index. Ref changes when the engine comes back
// with an empty cache.
func (r *Rank) Ref() prefix.Ref { return prefix.Ref(r.ref.Load()) }

// Load returns the rank's latest load. Load is immutable.
func (r *Rank) Load() *Load {
	if r.Count == 1 {
		return r.node.Load()
	}
	return r.load.Load()
}

// Others returns Others and Waiting of the rank's load. Others spares a pick among many nodes the
// load itself, which lies elsewhere in memory.
func (r *Rank) Others() (requests, waiting int64) {
	both := r.others.Load()
	return int64(both >> 32), int64(uint32(both))
}

// setOthers stores what Others returns. The numbers are not negative.
func (r *Rank) setOthers(l *Load) { r.others.Store(uint64(l.Others)<<32 | uint64(l.Waiting)) }

// InFlight returns the number of this router's requests on the rank.
func (r *Rank) InFlight() int32 { return r.inFlight.Load() }

// Beside returns the number of requests at the node's other ranks, by the given counts of others'
// requests at the node and at the rank. All ranks of a node share its slots.
func (r *Rank) Beside(node, rank int32) int32 {
	if r.Count == 1 {
		return 0
	}
	return max(r.node.InFlight()+node-r.inFlight.Load()-rank, 0)
}

// Acquire counts one request as in flight at the rank, as Node.Acquire does at the node.
func (r *Rank) Acquire() bool { return r.took(r.node.Acquire()) }

// AcquireLastResort is Acquire for a node with LastResort.
func (r *Rank) AcquireLastResort() bool { return r.took(r.node.AcquireLastResort()) }

// AcquireAlways counts one request as in flight regardless of the node's state.
func (r *Rank) AcquireAlways() {
	r.node.AcquireAlways()
	r.took(true)
}

// took counts a request that the node has taken.
func (r *Rank) took(ok bool) bool {
	if ok && r.Count > 1 {
		r.recent.Rise(int64(r.inFlight.Add(1)))
	}
	return ok
}

// Release takes back one Acquire of the rank.
func (r *Rank) Release() {
	if r.Count > 1 {
		r.inFlight.Add(-1)
	}
	r.node.Release()
}

// OwnPrefill returns how many prompt tokens this router's requests still have to compute at the
// node at now.
func (n *Node) OwnPrefill(now time.Time) (tokens int64) {
	for _, r := range n.Ranks() {
		tokens += r.Book.Prefill(now)
	}
	return tokens
}

// Blocks returns the KV blocks, of prefix.BlockTokens, of this router's requests at the node.
func (n *Node) Blocks() (blocks float64) {
	for _, r := range n.Ranks() {
		blocks += r.Book.Blocks()
	}
	return blocks
}

// adopt replaces the node's ranks. Requests in flight end at the old ranks. Several new ranks count
// these requests as requests of others.
func (n *Node) adopt(ranks []*Rank, now time.Time) {
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	n.ranks.Store(&ranks)
	n.publishLoad(now)
}

// fitRanks gives the node as many ranks as its facts say. Only the fleet's goroutine calls
// fitRanks.
func (f *Fleet) fitRanks(n *Node) {
	old := n.Ranks()
	if count := max(n.Info().DataParallel, 1); count != len(old) {
		ranks := newRanks(n, count)
		f.joinRanks(ranks)
		n.adopt(ranks, time.Now())
		f.leaveRanks(old)
		f.dirty = true
	}
}

// joinRanks gives each rank a new incarnation in the prefix index. The index then forgets its
// beliefs about the old one.
func (f *Fleet) joinRanks(ranks []*Rank) {
	if f.o.Index == nil {
		return
	}
	f.leaveRanks(ranks)
	for _, r := range ranks {
		r.ref.Store(uint32(f.o.Index.Join(r.Name)))
	}
}

// leaveRanks makes the prefix index forget the ranks.
func (f *Fleet) leaveRanks(ranks []*Rank) {
	for _, r := range ranks {
		if ref := r.Ref(); ref != 0 && f.o.Index != nil {
			f.o.Index.Leave(ref)
		}
	}
}
