// Package leg asks the fleet one question for a request. The package picks a node, sends the
// request and waits for the first sign of an answer. The package asks another node while nothing
// has reached the answer's place. An attempt is one exchange with one node and ends in a verdict.
// The engine's report of cached tokens corrects the index for the next pick.
package leg

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/where"
)

// Limits bound the legs of one model. The durations are positive.
type Limits struct {
	FirstByte time.Duration // hard limit until the first body event (streams) or the head
	Idle      time.Duration // longest gap between two reads of the body
	Total     time.Duration // longest complete response
	// MaxQueue caps the requests in flight on the nodes of each role; 0 = the gate's own cap.
	// MaxQueueDecode is the cap for role decode alone; 0 = MaxQueue.
	MaxQueue, MaxQueueDecode int
}

// Options are the settings of a Dispatcher.
type Options struct {
	Limits        Limits
	ModelLimits   map[string]Limits // complete values by model name
	FirstByteCold time.Duration
	PatienceFloor time.Duration
	StallFloor    time.Duration
	MaxNodes      int // nodes tried after the first
	// OverloadStatus is the status when every node is busy by its thresholds; 0: 503.
	OverloadStatus int
	Feedback       bool // learn from cached-token counts; asks engines for usage
	HardSessions   bool // a session stays at its node, even if the policy prefers another one
	PassNvext      bool // leave the member nvext in the body, for engines that know it
	Disagg         Disagg
	// RefuseOverSLO refuses a request whose first token is expected later than its target allows.
	RefuseOverSLO bool
	// Unsampled makes mode predicted look at every node of a large fleet. A simulation sets it, to
	// tell what the sample costs.
	Unsampled bool
	// Random draws 64 bits for a pick. The default is rand.Uint64. A simulation sets its own
	// Random, to be repeatable.
	Random func() uint64
}

// Parts are the things that a Dispatcher works with. A Dispatcher owns none of its Parts.
type Parts struct {
	Fleet   *fleet.Fleet
	Where   *where.Finder
	Policy  *atomic.Pointer[policy.Policy]
	Gate    *admission.Gate
	Budget  *admission.Budget
	Metrics *metrics.Router
	Stored  *affinity.Table // records which node made a stored response
	Logger  *slog.Logger
	Busy    *busy.Settings // thresholds at which nodes get no further requests; nil: none

	Sessions *affinity.Sessions // nil: the router remembers no session's node
	Waiting  Waiting
}

// Dispatcher sends legs to nodes. Dispatcher is safe for concurrent use.
type Dispatcher struct {
	o         Options
	forecasts forecasts
	sharing   books.Sharing
	fleet     *fleet.Fleet
	where     *where.Finder
	policy    *atomic.Pointer[policy.Policy]
	gate      *admission.Gate
	budget    *admission.Budget
	metrics   *metrics.Router
	stored    *affinity.Table
	log       *slog.Logger

	busy     *busy.Settings
	overload *apierror.Error // every node is busy by its thresholds
	counts
	sessions *affinity.Sessions // nil: none is remembered

	table      atomic.Pointer[servedFleet]
	rebuilding sync.Mutex
	gone       gone             // guarded by rebuilding
	stalls     []patience.Stall // scratch memory of Run
	background
}

// background is what outlives single requests besides the fleet.
type background struct {
	waiting Waiting
	errands errands
	lessons lessons
	facts   facts
}

// counts are counters that are bound to their labels.
type counts struct {
	filtered      filterCounts
	ways          wayCounts
	sessionCounts sessionCounts
}

// New returns a dispatcher. Slow and stalled nodes are noticed only while Run runs.
func New(p Parts, o Options) *Dispatcher {
	if o.Random == nil {
		o.Random = rand.Uint64
	}
	d := &Dispatcher{
		o: o, fleet: p.Fleet, where: p.Where, policy: p.Policy, gate: p.Gate,
		budget: p.Budget, metrics: p.Metrics, stored: p.Stored, log: p.Logger,
		busy: p.Busy, overload: errOverload(o.OverloadStatus),
		sessions: p.Sessions,
		counts:   counts{newFilterCounts(p.Metrics), newWayCounts(p.Metrics), newSessionCounts(p.Metrics)},
	}
	d.forecasts.kinds, d.forecasts.idle = map[kindKey]*predict.Kind{}, map[kindKey]time.Time{}
	d.gone = gone{nodes: map[*fleet.Node]time.Time{}, models: map[string]time.Time{}}
	d.waiting = p.Waiting
	d.facts, d.lessons.room = newFacts(), room.New(maxLessonBytes)
	d.errands.bug = func(p any) { d.metrics.Bug(d.log, "an errand", p) }
	d.table.Store(&servedFleet{})
	return d
}

// Arrived counts one request of a client. The retry budget is a share of the arrived requests.
func (d *Dispatcher) Arrived() { d.budget.Request() }

// Run watches waiting legs until ctx ends. Run gives up attempts that are overdue compared with
// their peers, and sets aside nodes that make no progress. Run forgets departed nodes and models.
// Run logs the number of failures without a log line of their own, and the nodes that are slower
// than their like. At the end Run waits for the dispatcher's errands, a few seconds.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.errands.end()
	period := max(d.o.PatienceFloor/10, 10*time.Millisecond)
	tick := time.NewTicker(period)
	defer tick.Stop()
	sweep := time.NewTicker(goneFor / 4)
	defer sweep.Stop()
	rest := time.NewTicker(complainEvery / 10)
	defer rest.Stop()
	for {
		select {
		case <-ctx.Done():
			d.complainOfRest(time.Now().Add(complainEvery))
			return nil
		case now := <-rest.C:
			d.complainOfRest(now)
			d.noteSlow(now)
		case now := <-tick.C:
			d.check(now)
		case now := <-sweep.C:
			d.forgetGone(now)
			d.forgetKinds(now)
		}
	}
}

func (d *Dispatcher) check(now time.Time) {
	t := d.current()
	for _, n := range t.nodes {
		n.pulse.Beat(n.Health.Computed())
	}
	for _, m := range t.models {
		for work, p := range m.patience {
			d.stalls = p.Check(now, d.stalls[:0])
			for _, s := range d.stalls {
				d.setAside(m, Work(work), s)
			}
		}
	}
}

func (d *Dispatcher) setAside(m *servedModel, work Work, s patience.Stall) {
	for n := range m.pools[work].each {
		if n.waits != s.Node {
			continue
		}
		n.node.Health.SetAside("no progress while its peers make some")
		n.node.metrics.SetAside.Inc()
		d.log.Warn("node set aside: it makes no progress while its peers do",
			"node", n.node.ID, "model", m.name, "moving_requests", s.Rescue)
	}
}
