package fleet

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/signals"
)

// Index is told of ranks that join and leave.
type Index interface {
	Join(id string) prefix.Ref
	Leave(prefix.Ref)
}

// Resolver looks DNS names up; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options of a Fleet. Durations of zero mean their default.
type Options struct {
	Backends []Backend       // static nodes
	Cluster  *cluster.Client // nil: static nodes only; the caller closes it after Run has returned
	AgentTLS *tls.Config     // for https agents; nil = the system's roots and no client certificate
	// Models are the models' settings of the router's configuration, by name. They come before
	// etcd's.
	Models map[string]*cluster.Model
	// Policies is called with the models' own policies, by the models' names, before the first
	// snapshot and before each one that changes them. An adapter without a policy has its base's.
	// Policies may be nil.
	Policies func(map[string]*policy.Policy)
	// Settings is called after the first snapshot and after each one with other models' settings.
	// Settings must not wait, and may be nil.
	Settings func()
	// Cordoned is called when an operator has cordoned a node, has changed the cordon, or has
	// lifted it: what is empty then. Cordoned must not wait, and may be nil.
	Cordoned func(node, what string)
	// Stored is called when somebody has stored a model's settings in etcd, or has deleted them.
	// Stored must not wait, and may be nil.
	Stored   func(model string, deleted bool)
	Index    Index    // nil: the fleet tells no index
	Resolver Resolver // nil = net.DefaultResolver
	Pool     relay.PoolOptions
	// Warm is the number of connections opened to a node when it joins or comes back; 0: none.
	Warm   int
	Logger *slog.Logger // nil = slog.Default
	// Lag is called for each change that an agent reports, with an upper bound of the change's age.
	// Lag may be nil.
	Lag func(time.Duration)
	// EventLag is called when the fleet looks into a kernel event, with the age of the event.
	// EventLag may be nil.
	EventLag func(time.Duration)

	ProbeInterval     time.Duration // health check of a healthy node; 5 s
	ProbeIntervalDown time.Duration // health check of any other node; 500 ms
	ProbeTimeout      time.Duration // bound of one check; 2 s
	ScrapeInterval    time.Duration // engine metrics of static nodes; 2 s, at least 1 s
	ModelsInterval    time.Duration // /v1/models of a healthy static node; 30 s
	ResolveInterval   time.Duration // DNS names; 10 s
	FirstWord         time.Duration // longest wait for a new static backend's first model list; 60 s
	// Grace is how long a node stays after an outage if etcd does not list it. The node's agent can
	// register again in that time. The default is 45 s, three leases. An agent with a longer
	// heartbeat than the default gets three of its own leases.
	Grace time.Duration
	// StaleAfter is the age at which a heartbeat counts as stopped while etcd answers. The default
	// is 30 s, six heartbeats. An agent with a longer heartbeat than the default gets six of its
	// own heartbeats.
	StaleAfter time.Duration
	// Proven makes static nodes healthy before their first check. A fleet that does not run needs
	// Proven, because nothing checks its nodes.
	Proven bool
}

func (o Options) withDefaults() Options {
	for d, usual := range map[*time.Duration]time.Duration{
		&o.ProbeInterval: 5 * time.Second, &o.ProbeIntervalDown: 500 * time.Millisecond,
		&o.ProbeTimeout: 2 * time.Second, &o.ScrapeInterval: 2 * time.Second, &o.ModelsInterval: 30 * time.Second,
		&o.ResolveInterval: 10 * time.Second, &o.FirstWord: 60 * time.Second, &o.Grace: 45 * time.Second,
		&o.StaleAfter: 30 * time.Second,
	} {
		if *d <= 0 {
			*d = usual
		}
	}
	o.ScrapeInterval, o.Logger = max(o.ScrapeInterval, time.Second), cmp.Or(o.Logger, slog.Default())
	if o.Resolver == nil {
		o.Resolver = net.DefaultResolver
	}
	return o
}

// Fleet follows the nodes and publishes snapshots. The goroutine of Run owns all mutable state.
// Other goroutines send the Fleet functions to call.
type Fleet struct {
	o         Options
	snap      atomic.Pointer[Snapshot]
	events    chan func(*Fleet)
	checks    *health.Checks
	watch     *health.Watch
	wg        sync.WaitGroup
	malformed atomic.Uint64
	signals   signals.Stats
	pathTurn  int // the next turn of TakePaths

	// The goroutine of Run owns these fields.
	ctx      context.Context
	members  map[string]*member
	streams  map[streamAt]*agentSignals // streams of agents; an agent's stream stays while a member names it
	static   staticState
	etcd     etcdState
	settings settings
	dirty    bool
	rev      uint64
	kickDNS  chan []string        // the names to look up
	problems map[subject]string   // maps to the reason
	departed map[string]time.Time // models that nodes of etcd served, and when the last of these nodes left
}

// member is a node, with the latest information from its source.
type member struct {
	node     *Node
	identity string // another value is another incarnation
	secrets  string // static: digest of key, CA and certificate
	heard    bool   // static: the node's models are known
	told     string // last logged reason for taking no requests, other than the breaker's; empty = it takes requests
	cancel   context.CancelFunc
	backend  Backend             // static
	health   *cluster.NodeHealth // etcd
	stampAt  time.Time           // etcd: when the heartbeat last changed, by our clock
	missing  time.Time           // etcd: start of the node's absence from etcd's list; zero = listed

	signalsAt streamAt // etcd: address of the agent's stream; zero: none
}

// These constants bound the fleet's own machinery.
const (
	eventQueue     = 256 // functions that wait for the fleet's goroutine; senders wait when it is full
	sweepInterval  = time.Second
	maxNodes       = 4096
	maxAddressesOf = 64 // nodes of one DNS name
)

// New checks the backends and reads the files they name. The first snapshot holds the static nodes
// that need no DNS, each of them unproven. Run continues from the first snapshot.
func New(o Options) (*Fleet, error) {
	f := &Fleet{
		o:        o.withDefaults(),
		events:   make(chan func(*Fleet), eventQueue),
		members:  map[string]*member{},
		streams:  map[streamAt]*agentSignals{},
		kickDNS:  make(chan []string, 1),
		problems: map[subject]string{},
		departed: map[string]time.Time{},
	}
	f.signals.Lag = o.Lag
	f.watch = health.NewWatch(f.healths, o.EventLag)
	f.checks = health.NewChecks(health.Options{
		Interval: f.o.ProbeInterval, IntervalDown: f.o.ProbeIntervalDown, Timeout: f.o.ProbeTimeout,
		Dial: o.Pool.Dial, Logger: f.o.Logger,
	})
	f.etcd.init(o.Cluster != nil)
	f.settings.init(o.Models)
	desired, err := prepare(o.Backends)
	if err != nil {
		return nil, err
	}
	f.setStatic(desired)
	f.publish()
	return f, nil
}

// Load returns the latest snapshot. Load allocates nothing. The caller may keep the snapshot.
func (f *Fleet) Load() *Snapshot { return f.snap.Load() }

// healths yields the health of each node in the latest snapshot.
func (f *Fleet) healths(yield func(*health.Node) bool) {
	for _, n := range f.Load().Nodes {
		if !yield(&n.Health) {
			return
		}
	}
}

// Tell queues a kernel event about a connection of this host. Tell does not block. If the queue is
// full, Tell counts the event and drops it. The next look finds the cause.
func (f *Fleet) Tell(e peerevents.Event) { f.watch.Tell(e) }

// Untold counts the events dropped because the queue was full.
func (f *Fleet) Untold() uint64 { return f.watch.Untold() }

// Looks counts how often the kernel was asked about a connection.
func (f *Fleet) Looks() uint64 { return f.watch.Looks() }

// Malformed counts refused values in etcd. The last good value of a key stays in force.
func (f *Fleet) Malformed() uint64 { return f.malformed.Load() }

// Run follows all sources until ctx ends. Then Run closes the nodes' pools and returns nil. Call
// Run once.
func (f *Fleet) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	f.ctx = ctx
	for _, m := range f.members {
		f.start(m)
	}
	f.wg.Go(func() { f.resolveLoop(ctx) })
	if f.o.Pool.Watch {
		f.wg.Go(func() { f.watch.Run(ctx) })
	}
	f.followEtcd(ctx)
	f.own(ctx)
	cancel()
	f.wg.Wait()
	return nil
}

func (f *Fleet) own(ctx context.Context) {
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event := <-f.events:
			event(f)
			f.drainEvents()
		case now := <-sweep.C:
			f.sweepEtcd(now)
			f.sweepLoads(now)
			f.sweepDeparted(now)
		}
		if f.dirty {
			f.publish()
		}
	}
}

// drainEvents runs all waiting events, so that they make one snapshot.
func (f *Fleet) drainEvents() {
	for range eventQueue {
		select {
		case event := <-f.events:
			event(f)
		default:
			return
		}
	}
}

// send hands an event to the fleet's goroutine. The event is lost when ctx ends first.
func (f *Fleet) send(ctx context.Context, event func(*Fleet)) {
	select {
	case f.events <- event:
	case <-ctx.Done():
	}
}

func (f *Fleet) publish() {
	changed := f.settings.changed
	if changed {
		f.mergeSettings()
	}
	nodes := make([]*Node, 0, len(f.members))
	for _, m := range f.members {
		nodes = append(nodes, m.node)
	}
	s := build(nodes, &f.settings)
	f.rev++
	s.Rev, s.Stale, s.StaleSince = f.rev, f.etcd.stale, f.etcd.staleSince
	s.Problems = append(s.Problems, f.listProblems()...)
	s.unheard = !f.etcd.heard
	s.Partial, s.awaited = f.partial()
	f.rememberDeparted(s, time.Now())
	s.expectAdapters()
	f.tellPolicies(s)
	if before := f.snap.Swap(s); before != nil {
		close(before.replaced)
	}
	f.dirty = false
	if changed && f.o.Settings != nil {
		f.o.Settings()
	}
}

// add makes a node a member. add refuses a node beyond maxNodes.
func (f *Fleet) add(id, identity string, source Source, info *Info, target relay.Target) *member {
	if len(f.members) >= maxNodes {
		f.problem(source.subject(), id, "the fleet is full")
		return nil
	}
	n := newNode(id, source, info, relay.NewPool(target, f.o.Pool))
	initial := health.Unproven
	if source == Etcd || f.o.Proven {
		initial = health.Healthy // its agent has checked the engine
	}
	n.asker = newAsker(f, n)
	n.Health.Init(f.checks, health.Who{ID: id, Address: info.Address, Pool: n.Pool, Subject: n.asker}, initial)
	f.applyCordon(n)
	f.joinIndex(n)
	m := &member{node: n, identity: identity}
	if source == Etcd {
		m.told = "joined"
	}
	f.members[id] = m
	f.dirty = true
	if f.ctx != nil {
		f.start(m)
	}
	return m
}

// start begins the member's checks. The checks end when the member leaves, which also closes its
// pool.
func (f *Fleet) start(m *member) {
	ctx, cancel := context.WithCancel(f.ctx)
	m.cancel = cancel
	f.wg.Go(func() {
		m.node.Health.Run(ctx)
		select {
		case <-m.node.end.drained:
		case <-f.ctx.Done():
		}
		m.node.Pool.Close()
	})
}

func (f *Fleet) remove(id string) {
	m := f.members[id]
	if m == nil {
		return
	}
	delete(f.members, id)
	f.solved(ofBackend, id)
	f.solved(ofNodeKey, id)
	f.leaveRanks(m.node.Ranks())
	f.o.Logger.Info("node left the fleet", "node", id)
	f.leaveSignals(m)
	m.node.leave()
	if m.cancel != nil {
		m.cancel()
	} else {
		m.node.Pool.Close()
	}
	f.dirty = true
}

// joinIndex gives the node's ranks new incarnations in the prefix index. The index then forgets its
// beliefs about the old ones, and the node which adapters were loaded.
func (f *Fleet) joinIndex(n *Node) {
	n.adapters.Forget()
	f.joinRanks(n.Ranks())
}

// breakerMoved is called without a lock after every change of the breaker's state.
func (f *Fleet) breakerMoved(n *Node, from, to health.State, why string) {
	switch {
	case to == health.Open || to == health.Aside:
		said := []any{"node", n.ID, "state", to.String(), "why", why}
		if last := n.Health.LastError(); last != "" {
			said = append(said, "error", last)
		}
		f.o.Logger.Warn("node takes no requests", said...)
	case to == health.Healthy && n.flags.Load() == 0:
		level := slog.LevelInfo
		if from != health.Unproven { // logged at the level of the line about the failure
			level = slog.LevelWarn
		}
		f.o.Logger.Log(context.Background(), level, "node takes requests", "node", n.ID, "was", from.String())
	}
}

// tell logs when the node's agent, its heartbeat or a cordon takes it out of service or brings it
// back.
func (f *Fleet) tell(m *member) {
	n, before := m.node, m.told
	m.told = ""
	if flags := n.flags.Load(); flags != 0 {
		m.told = n.flagReason(flags)
	}
	switch s := n.Health.State(); {
	case m.told == before:
	case m.told != "":
		f.o.Logger.Info("node takes no requests", "node", n.ID, "why", m.told)
	case s == health.Healthy || s == health.HalfOpen:
		f.o.Logger.Info("node takes requests", "node", n.ID, "was", before)
	}
}
