package fleet

import (
	"math"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
)

// Origin is where a node's load comes from.
type Origin string

// The origins. Without one, only this router's own counts are used.
const (
	Nobody    Origin = "nobody"
	Heartbeat Origin = "heartbeat" // of its agent, in etcd
	Stream    Origin = "stream"    // of its agent, which tells of changes
	Metrics   Origin = "metrics"   // of a static node's engine
)

// Load is a node's load as this router knows it. It is immutable once published.
type Load struct {
	load.Load        // as told last; figures that are too old are unknown
	From      Origin // of these figures
	Others    int32  // requests in the engine, running and waiting, that are not this router's
	Waiting   int32  // of those, waiting
}

// trustedBeats is for how many heartbeats a sample counts. An older one is unknown. Scrapes count
// as long as heartbeats at their default.
const trustedBeats = 3

const defaultTrust = trustedBeats * cluster.DefaultHeartbeat

// sources has the last news of each source of a node's load. Node.slotsMu guards it.
type sources struct {
	beat     load.Load // of the last heartbeat or scrape
	from     Origin    // of beat
	beatOurs int32     // requests of this router that may be in beat
	trust    time.Duration

	pushed     *load.Load // by the agent's stream; nil: there is none
	pushedOurs int32
}

// at is the load by the newest source at now.
func (s *sources) at(now time.Time) *Load {
	l, ours := &Load{Load: s.beat, From: s.from}, s.beatOurs
	if s.pushed != nil {
		l.Load, l.From, ours = *s.pushed, Stream, s.pushedOurs
	}
	if l.Forget(now, s.trust); l.From != Stream && l.Load == (load.Load{}) {
		l.From = Nobody
	}
	held, heldKnown := l.InFlight.Get()
	waiting, waitingKnown := l.QueueDepth.Get()
	if heldKnown {
		l.Others = foreign(held, ours)
	}
	if heldKnown && waitingKnown {
		l.Waiting = foreignWaiting(held, waiting, ours)
	}
	return l
}

// foreign is how many of the requests that the engine holds are not ours.
func foreign(held float64, ours int32) int32 {
	return int32(max(0, min(held-float64(ours), load.MaxRequests)))
}

// foreignWaiting is how many of the waiting requests are not ours: never more than the engine holds
// beyond ours.
func foreignWaiting(held, waiting float64, ours int32) int32 {
	return min(foreign(waiting, 0), foreign(held, ours))
}

// beat is a heartbeat or a scrape.
type beat struct {
	load.Load
	from  Origin
	trust time.Duration // how old a sample may be that counts
}

// beatOf is the load in a heartbeat that came at now.
func beatOf(h *cluster.NodeHealth, now time.Time) beat {
	b := beat{Load: h.Load, from: Heartbeat, trust: trustedBeats * h.Heartbeat()}
	b.Arrived(now)
	return b
}

// setLoad takes a heartbeat or a scrape that came at now. It is called by one goroutine per node:
// the one that checks a static node, the fleet's of another.
func (n *Node) setLoad(b beat, now time.Time) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	n.told.beat, n.told.from, n.told.trust, n.told.beatOurs = b.Load, b.from, b.trust, n.lately(now)
	n.publishLoad(now)
}

// take takes a reading of the agent's stream. Nil: the stream has ended, and the heartbeat counts
// again.
func (n *Node) take(l *load.Load) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	now := time.Now()
	if n.told.pushed = l; l != nil {
		n.told.pushedOurs = n.lately(now)
	}
	n.publishLoad(now)
}

// age forgets samples that are too old at now.
func (n *Node) age(now time.Time) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	n.publishLoad(now)
}

// publishLoad is called with slotsMu held.
func (n *Node) publishLoad(now time.Time) {
	n.load.Store(n.told.at(now))
	n.setSlots()
}

// setSlots is called with slotsMu held.
func (n *Node) setSlots() {
	slots := int32(math.MaxInt32)
	if limit := n.info.Load().MaxConcurrent; limit > 0 {
		slots = limit - n.load.Load().Waiting
	}
	n.slots.Store(slots)
}

// Load is the node's load as it is known now. It is immutable.
func (n *Node) Load() *Load { return n.load.Load() }
