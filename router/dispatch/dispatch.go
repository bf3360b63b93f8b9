// Package dispatch takes a scanned request to the node that should answer it: it asks the
// prefix index and the policy, sends, waits for the first sign of an answer, and asks
// another node while nothing has reached the client. What the engine reports afterwards
// goes back into the index.
package dispatch

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/patience"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/tokens"
)

// Limits bound the requests of one model. The durations are positive.
type Limits struct {
	FirstByte time.Duration // hard bound until the first body event (streams) or the head
	Idle      time.Duration // longest gap between two reads of the body
	Total     time.Duration // longest whole response
	// MaxQueue caps the requests in flight on the nodes of each role; 0 = the gate's own.
	// MaxQueueDecode is for those of role decode alone; 0 = MaxQueue.
	MaxQueue, MaxQueueDecode int
}

// Options of a Dispatcher.
type Options struct {
	Limits        Limits
	ModelLimits   map[string]Limits // complete values for the models named
	FirstByteCold time.Duration
	PatienceFloor time.Duration
	StallFloor    time.Duration
	MaxNodes      int  // further nodes tried after the first
	Feedback      bool // learn from cached-token counts; asks engines for usage
	// Random draws 64 bits for a pick. Default rand.Uint64; a simulation has its own, to be repeatable.
	Random func() uint64
}

// Parts are what a Dispatcher works with. It owns none of them.
type Parts struct {
	Fleet   *fleet.Fleet
	Index   *prefix.Index
	Policy  *atomic.Pointer[policy.Policy]
	Gate    *admission.Gate
	Budget  *admission.Budget
	Metrics *metrics.Router
	Stored  *affinity.Table
	Memo    *Memo // may be nil
	// Holdings is what cache daemons say; nil: nothing is known of them.
	Holdings *holdings.Map
	// Tokens makes prompts of some models their own token ids; nil: of none.
	Tokens *tokens.Set
	Log    *slog.Logger
}

// Dispatcher sends requests. It is safe for concurrent use.
type Dispatcher struct {
	options  Options
	fleet    *fleet.Fleet
	index    *prefix.Index
	policy   *atomic.Pointer[policy.Policy]
	gate     *admission.Gate
	budget   *admission.Budget
	metrics  *metrics.Router
	stored   *affinity.Table
	memo     *Memo
	holdings *holdings.Map
	tokens   *tokens.Set
	log      *slog.Logger

	table      atomic.Pointer[table]
	rebuilding sync.Mutex
	gone       gone             // guarded by rebuilding
	turn       atomic.Uint64    // round robin's counter
	lookups    atomic.Int32     // searches for stored responses under way
	lostAfter  time.Duration    // see responsesLost
	stalls     []patience.Stall // Run's scratch
}

// New returns a dispatcher. Run must be running for slow and stalled nodes to be noticed.
func New(p Parts, o Options) *Dispatcher {
	if o.Random == nil {
		o.Random = rand.Uint64
	}
	d := &Dispatcher{
		options: o, fleet: p.Fleet, index: p.Index, policy: p.Policy, gate: p.Gate,
		budget: p.Budget, metrics: p.Metrics, stored: p.Stored, memo: p.Memo, holdings: p.Holdings, tokens: p.Tokens, log: p.Log,
	}
	d.lostAfter = responsesLost
	d.gone = gone{nodes: map[*fleet.Node]time.Time{}, models: map[string]time.Time{}}
	d.table.Store(&table{})
	return d
}

// Run watches over requests that wait, until ctx ends: it gives up attempts that are
// overdue by the standard of their peers and sets nodes aside that make no progress. It also
// forgets what has left the fleet, and logs how many failures had no line of their own.
func (d *Dispatcher) Run(ctx context.Context) error {
	period := max(d.options.PatienceFloor/10, 10*time.Millisecond)
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
		case now := <-tick.C:
			d.check(now)
		case now := <-sweep.C:
			d.forgetGone(now)
		}
	}
}

func (d *Dispatcher) check(now time.Time) {
	for _, m := range d.current().models {
		d.stalls = m.patience.Check(now, d.stalls[:0])
		for _, s := range d.stalls {
			d.setAside(m, s)
		}
	}
}

func (d *Dispatcher) setAside(m *servedModel, s patience.Stall) {
	for _, member := range m.nodes {
		if member.waits != s.Node {
			continue
		}
		member.SetAside("no progress while its peers make some")
		member.metrics.SetAside.Inc()
		d.log.Warn("node set aside: it makes no progress while its peers do", "node", member.ID, "model", m.name, "moving_requests", s.Rescue)
	}
}
