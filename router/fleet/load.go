package fleet

import (
	"math"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/signals"
)

// Load is a node's latest telemetry. Unknown numbers are NaN. It is immutable once published.
type Load struct {
	Others      int32   // requests in the engine, running and waiting, that are not this router's
	Waiting     int32   // of those, waiting
	EngineQueue float32 // all requests that wait in the engine
	EngineBusy  float32 // requests the engine computes
	SM          float32 // fraction of the GPU in use, 0..1
	Watts       float32 // mean of the last 30 s, or the latest
	KVUsage     float32 // fraction of the KV cache in use, 0..1
	CPU         float32 // CPUs that the engine's processes use
	EngineWait  float32 // threads of them that wait for a CPU, on average
	RunDelay    float32 // seconds that 99 % of the waits for a CPU on the node's host do not exceed
	RTT         float32 // seconds, median of round trips between the agent's front and its clients
	Retransmits float32 // share of the segments sent to them that were sent again, 0..1

	At     time.Time // of the heartbeat or scrape; zero = nothing is known yet
	Pushed bool      // what follows comes from the agent's stream, else from the heartbeat
	// When the samples were taken, by this host's clock: of CPU, EngineWait, RunDelay, RTT and Retransmits; of SM; of Watts. Zero: they are not known.
	KernelAt, SMAt, WattsAt time.Time
}

var unknownLoad = Load{
	EngineQueue: policy.Unknown(), EngineBusy: policy.Unknown(),
	SM: policy.Unknown(), Watts: policy.Unknown(), KVUsage: policy.Unknown(),
	CPU: policy.Unknown(), EngineWait: policy.Unknown(), RunDelay: policy.Unknown(), RTT: policy.Unknown(), Retransmits: policy.Unknown(),
}

// trustFor is how old a sample may be that counts: three heartbeats. What is older is unknown, not what it was.
const trustFor = 15 * time.Second

func loadOfHealth(h *cluster.NodeHealth, ours int32, now time.Time) Load {
	l := unknownLoad
	l.At = now
	l.requests(h.InFlight, h.QueueDepth, ours)
	sampled := func(ageMs cluster.Gauge, known ...cluster.Gauge) time.Time {
		for _, g := range known {
			if _, ok := g.Get(); ok {
				return now.Add(-time.Duration(ageMs.Or(0) * float64(time.Millisecond)))
			}
		}
		return time.Time{}
	}
	l.kernel(&kernel{h.CPUPct, h.EngineWaitPct, h.RunqUsP99, h.SRTTUsP50, h.RetransPPM,
		sampled(h.KernelAgeMs, h.CPUPct, h.EngineWaitPct, h.RunqUsP99, h.SRTTUsP50, h.RetransPPM)})
	l.gpu(h.SMPct, sampled(h.SMAgeMs, h.SMPct))
	l.power(h.PowerWatts, h.PowerWattsAvg30, sampled(h.PowerAgeMs, h.PowerWatts, h.PowerWattsAvg30))
	free, freeKnown := h.FreeBlocks.Get()
	total, totalKnown := h.TotalBlocks.Get()
	if freeKnown && totalKnown && total > 0 {
		l.KVUsage = float32(math.Max(0, 1-free/total))
	}
	return l
}

// requests takes how many requests are in the engine, and of those waiting.
func (l *Load) requests(inFlight, queue cluster.Gauge, ours int32) {
	held, heldKnown := inFlight.Get()
	waiting, waitingKnown := queue.Get()
	l.EngineQueue = queue.Float32()
	if heldKnown {
		l.Others = foreign(held, ours)
	}
	if heldKnown && waitingKnown {
		l.EngineBusy = float32(max(0, held-waiting))
		l.Waiting = foreignWaiting(held, waiting, ours)
	}
}

// kernel is what the kernel of a node's host tells, and when it was looked at.
type kernel struct {
	cpuPct, engineWaitPct, runqUs, srttUs, retransPPM cluster.Gauge

	at time.Time
}

func (l *Load) kernel(k *kernel) {
	l.CPU, l.EngineWait, l.RunDelay = k.cpuPct.Float32()/100, k.engineWaitPct.Float32()/100, k.runqUs.Float32()/1e6
	l.RTT, l.Retransmits = k.srttUs.Float32()/1e6, k.retransPPM.Float32()/1e6
	l.KernelAt = k.at
}

func (l *Load) gpu(smPct cluster.Gauge, at time.Time) { l.SM, l.SMAt = smPct.Float32()/100, at }

func (l *Load) power(watts, avg30 cluster.Gauge, at time.Time) {
	l.Watts, l.WattsAt = avg30.Float32(), at
	if _, known := avg30.Get(); !known {
		l.Watts = watts.Float32()
	}
}

// with is the load as the agent's stream has told it since.
func (l Load) with(r *signals.Reading, ours int32) Load {
	l.Pushed, l.Others, l.Waiting, l.EngineBusy = true, 0, 0, policy.Unknown()
	l.requests(r.InFlight, r.Queue, ours)
	l.kernel(&kernel{r.CPUPct, r.EngineWaitPct, r.RunqUsP99, r.SRTTUsP50, r.RetransPPM, r.Kernel})
	l.gpu(r.SMPct, r.SM)
	l.power(r.Watts, r.WattsAvg30, r.Power)
	return l
}

// forget makes unknown what is too old at now.
func (l *Load) forget(now time.Time) {
	old := func(at time.Time) bool { return !at.IsZero() && now.Sub(at) > trustFor }
	unknown := unknownLoad
	if !l.Pushed && old(l.At) {
		l.Others, l.Waiting, l.EngineQueue, l.EngineBusy = 0, 0, unknown.EngineQueue, unknown.EngineBusy
	}
	if old(l.At) {
		l.KVUsage = unknown.KVUsage
	}
	if old(l.KernelAt) {
		l.kernel(&kernel{})
	}
	if old(l.SMAt) {
		l.SM, l.SMAt = unknown.SM, time.Time{}
	}
	if old(l.WattsAt) {
		l.Watts, l.WattsAt = unknown.Watts, time.Time{}
	}
}

// setLoad takes a heartbeat or a scrape. It is called by one goroutine per node: the prober of a static node, the fleet's of another.
func (n *Node) setLoad(l Load) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	n.beat = l
	n.setEffective(time.Now())
}

// take takes a reading of the agent's stream; nil: the stream has ended, and the heartbeat counts again.
func (n *Node) take(r *signals.Reading) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	now := time.Now()
	if n.pushed = r; r != nil {
		n.pushedOurs = n.lately(now)
	}
	n.setEffective(now)
}

// age forgets what has become too old.
func (n *Node) age(now time.Time) {
	n.slotsMu.Lock()
	defer n.slotsMu.Unlock()
	n.setEffective(now)
}

// setEffective is called with slotsMu held.
func (n *Node) setEffective(now time.Time) {
	l := n.beat
	if n.pushed != nil {
		l = l.with(n.pushed, n.pushedOurs)
	}
	l.forget(now)
	n.load.Store(&l)
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

// Load is the latest telemetry. It is immutable.
func (n *Node) Load() *Load { return n.load.Load() }
