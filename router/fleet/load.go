package fleet

import (
	"math"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/prefix"
)

// Origin names the source of a node's load.
type Origin string

// These are the origins. A load without an origin holds only this router's own counts.
const (
	Nobody    Origin = "nobody"
	Heartbeat Origin = "heartbeat" // the agent's heartbeat in etcd
	Stream    Origin = "stream"    // the agent's stream of changes
	Metrics   Origin = "metrics"   // the metrics of a static node's engine
)

// Load is a node's load as this router knows it. Load is immutable once published.
type Load struct {
	load.Load        // the last figures; too old figures are unknown
	From      Origin // origin of these figures
	Others    int32  // requests in the engine, running and waiting, of other routers and clients
	Waiting   int32  // the requests among Others that wait
	// OthersBlocks is the number of KV blocks, of prefix.BlockTokens, that requests of others use.
	OthersBlocks int64
}

// untold is the load of every node that has reported nothing.
var untold = &Load{From: Nobody}

// Told says whether the node has reported some of its load.
func (l *Load) Told() bool { return l != untold }

// trustedBeats is the number of heartbeats after which a sample counts as unknown. A scrape counts
// for as long as a heartbeat at the default interval.
const trustedBeats = 3

const defaultTrust = trustedBeats * cluster.DefaultHeartbeat

// reports are what the node's load, limit and slots follow from.
type reports struct {
	mu sync.Mutex // keeps load, limit and slots in line with info and sources
	sources
	recent books.Peak // of inFlight; mu guards its windows
}

// sources holds the latest load from each source. reports.mu guards the sources.
type sources struct {
	beat     load.Load // load of the last heartbeat or scrape
	from     Origin    // of beat
	beatOurs ours
	trust    time.Duration

	pushed     *load.Load // load from the agent's stream; nil: there is no stream
	pushedOurs ours
}

// ours is the part of an engine's figures that may be of this router.
type ours struct {
	requests int32
	blocks   int64  // of prefix.BlockTokens
	ranks    []ours // by rank; nil: the node has one
}

// rank returns the part of rank i among n ranks. The part is zero if the ranks have changed since.
func (o *ours) rank(i, n int) (part ours) {
	if len(o.ranks) == n {
		part = o.ranks[i]
	}
	return part
}

// at returns the load of the newest source at now, and this router's part of it. blockTokens is the
// size of the engine's blocks.
func (s *sources) at(now time.Time, blockTokens int) (*Load, ours) {
	l, ours := &Load{Load: s.beat, From: s.from}, s.beatOurs
	if s.pushed != nil {
		l.Load, l.From, ours = *s.pushed, Stream, s.pushedOurs
	}
	if l.Forget(now, s.trust); l.From != Stream && l.Empty() {
		return untold, ours
	}
	l.subtract(ours, blockTokens)
	return l, ours
}

// rank returns the load of rank i among n ranks. ours is this router's part of l.
func (l *Load) rank(i, n int, ours ours, blockTokens int) *Load {
	if !l.Told() {
		return untold
	}
	part := &Load{Load: l.Load, From: l.From}
	part.Engine, part.Power = l.Engine.Rank(i, n), l.Power.Rank(n)
	part.subtract(ours.rank(i, n), blockTokens)
	return part
}

// subtract computes the part of the load that is not this router's.
func (l *Load) subtract(ours ours, blockTokens int) {
	held, heldKnown := l.InFlight.Get()
	waiting, waitingKnown := l.QueueDepth.Get()
	if heldKnown {
		l.Others = foreign(held, ours.requests)
	}
	if heldKnown && waitingKnown {
		l.Waiting = foreignWaiting(held, waiting, ours.requests)
	}
	if heldKnown && l.Others == 0 {
		return // beyond ours.blocks there are only the unfinished blocks and the answers of our requests
	}
	l.OthersBlocks = max(0, usedBlocks(&l.Engine, blockTokens)-ours.blocks)
}

// usedBlocks returns the blocks, of prefix.BlockTokens, that the engine's active requests use; 0:
// the engine does not tell. blockTokens is the size of the engine's own blocks; 0: unknown.
func usedBlocks(e *load.Engine, blockTokens int) int64 {
	free, freeKnown := e.FreeBlocks.Get()
	total, totalKnown := e.TotalBlocks.Get()
	if !freeKnown || !totalKnown || blockTokens <= 0 {
		return 0
	}
	return int64(max(0, total-free) * float64(blockTokens) / prefix.BlockTokens)
}

// foreign returns how many requests in the engine are not this router's.
func foreign(held float64, ours int32) int32 {
	return int32(max(0, min(held-float64(ours), load.MaxRequests)))
}

// foreignWaiting returns how many waiting requests are not this router's. foreignWaiting never
// returns more than foreign(held, ours).
func foreignWaiting(held, waiting float64, ours int32) int32 {
	return min(foreign(waiting, 0), foreign(held, ours))
}

// beat is the load in a heartbeat or in a scrape.
type beat struct {
	load.Load
	from  Origin
	trust time.Duration // the age from which on a sample does not count
}

// beatOf returns the load in a heartbeat that came at now.
func beatOf(h *cluster.NodeHealth, now time.Time) beat {
	b := beat{Load: h.Load, from: Heartbeat, trust: trustedBeats * h.Heartbeat()}
	b.Arrived(now)
	return b
}

// lately returns the most that this router had on the node in the last one to two windows of a
// Peak. The caller holds told.mu.
func (n *Node) lately(now time.Time) ours {
	all := ours{requests: int32(n.told.recent.Since(now, int64(n.requests().Load())))}
	ranks := n.Ranks()
	for _, r := range ranks {
		blocks := r.Book.Recent(now)
		if all.blocks += blocks; len(ranks) > 1 {
			requests := r.recent.Since(now, int64(r.inFlight.Load()))
			all.ranks = append(all.ranks, ours{requests: int32(requests), blocks: blocks})
		}
	}
	return all
}

// setLoad stores the load of a heartbeat or a scrape that came at now. One goroutine per node calls
// setLoad: the checking goroutine of a static node, or the fleet's goroutine for any other node.
func (n *Node) setLoad(b beat, now time.Time) {
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	n.told.beat, n.told.from, n.told.trust, n.told.beatOurs = b.Load, b.from, b.trust, n.lately(now)
	n.publishLoad(now)
}

// take stores a reading of the agent's stream. nil means that the stream has ended. The heartbeat's
// load then counts again.
func (n *Node) take(l *load.Load) {
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	now := time.Now()
	if n.told.pushed = l; l != nil {
		n.told.pushedOurs = n.lately(now)
	}
	n.publishLoad(now)
}

// age forgets samples that are too old at now.
func (n *Node) age(now time.Time) {
	n.told.mu.Lock()
	defer n.told.mu.Unlock()
	n.publishLoad(now)
}

// publishLoad stores the load as of now and adjusts the slots. The caller holds told.mu.
func (n *Node) publishLoad(now time.Time) {
	blockTokens := n.Info().BlockTokens
	l, ours := n.told.at(now, blockTokens)
	n.load.Store(l)
	if ranks := n.Ranks(); len(ranks) > 1 {
		for i, r := range ranks {
			part := l.rank(i, len(ranks), ours, blockTokens)
			r.load.Store(part)
			r.setOthers(part)
		}
	} else {
		n.only.setOthers(l)
	}
	n.setSlots()
}

// setSlots computes the free slots from the limit and the load. The caller holds told.mu.
func (n *Node) setSlots() {
	slots := int32(math.MaxInt32)
	if limit := n.limit.Load(); limit > 0 {
		slots = limit - n.load.Load().Waiting
	}
	n.slots.Store(slots)
}

// Load returns the node's latest load, of all ranks together. Load is immutable.
func (n *Node) Load() *Load { return n.load.Load() }
