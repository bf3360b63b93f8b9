// Package router is the cgn-router daemon as a library. The daemon is an OpenAI-compatible port in
// front of a fleet of inference engines.
package router

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/gateway"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/kvevents"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/limits/shared"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/peerevents"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/tally"
	"github.com/cognitora/dataplane/router/traces"
	"github.com/cognitora/dataplane/router/where"
)

// Router is one router process. Make a Router with New, then Run it once, or Close it.
type Router struct {
	config  *Config
	log     *slog.Logger
	serving net.Listener
	adminAt net.Listener

	tls, adminTLS *tls.Config   // of the serving port and of the admin port; nil: plain HTTP
	identity      *pki.Identity // that tls shows

	cluster      *cluster.Client // nil: static backends only
	fleet        *fleet.Fleet
	index        *prefix.Index
	holdings     *holdings.Map
	tokens       *tokenizers
	settled      chan struct{} // woken after a change of the models' settings
	events       *kvevents.Followers
	peers        *peerevents.Client // nil without router.kernel_events
	policy       atomic.Pointer[policy.Policy]
	inForce      atomic.Pointer[policy.InForce] // policy, for people; set by one goroutine at a time
	backends     atomic.Pointer[[]fleet.Backend]
	reloaded     chan struct{} // woken after a change of backends
	policyDoc    []byte        // contents of the policy file when the router was made
	gate         *admission.Gate
	busy         *busy.Settings
	thresholds   *thresholds
	metrics      *metrics.Router
	watcher      *relay.Watcher
	loops        *relay.Loops
	access       *accesslog.Logger
	audit        *audit.Log         // nil: off
	traces       *traces.Tracer     // nil: off
	tally        *tally.Tally       // nil: off
	sessions     *affinity.Sessions // nil: off
	queue        *queue.Queue       // nil: off
	legs         *leg.Dispatcher
	plans        *plan.Planner
	keys         *keys.Follower   // nil: no API key counts
	door         *auth.Door       // nil: everybody may ask
	salts        *isolation.Salts // nil: clients share cached prompts
	book         limits.Book      // of tenants and models
	shared       *shared.Limiter  // nil: the router counts limits alone
	gateway      *gateway.Gateway
	admin        *adminport.Server
	admins       *adminRights
	handover     handover
	reloadFailed atomic.Bool // the last reload failed
}

// New checks c, binds both listeners and prepares all parts. The router serves nothing before Run.
func New(c Config) (r *Router, err error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	r = &Router{config: &c, log: cmp.Or(c.Logger, slog.Default()), metrics: metrics.New(), busy: new(busy.Settings),
		reloaded: make(chan struct{}, 1)}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	for _, note := range c.Advise() {
		r.log.Warn("a setting does less than it seems to", "warning", note)
	}
	if err = r.open(); err != nil {
		return r, err
	}
	if r.tls, r.identity, err = c.TLS.server(); err != nil {
		return r, err
	}
	if r.adminTLS, err = c.AdminTLS.Config(); err != nil {
		return r, err
	}
	if r.watcher, err = relay.NewWatcher(); err != nil {
		return r, fmt.Errorf("watching client connections: %w", err)
	}
	if r.loops, err = relay.NewLoops(relay.LoopsOptions{Lag: r.metrics.RelayLag.Observe, Panicked: r.panicked}); err !=
		nil {
		return r, fmt.Errorf("starting the relay's loops: %w", err)
	}
	if err = r.openAccessLog(); err != nil {
		return r, err
	}
	if r.audit, err = c.Audit.open(r); err != nil {
		return r, err
	}
	r.adviseLogs()
	if r.traces, err = c.Traces.open(r.metrics, r.log); err != nil {
		return r, err
	}
	if r.tally, err = c.Usage.open(r); err != nil {
		return r, err
	}
	r.index = prefix.NewIndex(prefix.Options{
		MaxBlocks: c.Prefix.MaxBlocks, PruneTo: c.Prefix.PruneTargetRatio, Lifetime: c.Prefix.TTL.Std(),
	})
	if err = r.joinFleet(); err != nil {
		return r, err
	}
	if err = r.startPolicy(); err != nil {
		return r, err
	}
	if err = r.openDoor(); err != nil {
		return r, err
	}
	if r.shared, err = c.RateLimit.open(r.log); err != nil {
		return r, err
	}
	if r.tokens, err = c.loadTokens(r.log); err != nil {
		return r, err
	}
	r.assemble()
	return r, nil
}

// open binds the listeners, or takes them over.
func (r *Router) open() (err error) {
	if err = r.claim(); err != nil {
		return err
	}
	if r.serving, err = r.listen("router.listen", "--listen", r.config.Router.Listen); err != nil {
		return err
	}
	if r.adminAt, err = r.listen("router.admin", "--admin", r.config.Router.Admin); err != nil {
		return err
	}
	return r.openTakeover()
}

// Addr returns the address of the serving port.
func (r *Router) Addr() net.Addr { return r.serving.Addr() }

// AdminAddr returns the address of the admin port.
func (r *Router) AdminAddr() net.Addr { return r.adminAt.Addr() }

// panicked is called when a bug has ended a stream.
func (r *Router) panicked(p any) {
	r.log.Error("a stream failed, this is a bug", "panic", p)
	r.metrics.Panics.Inc()
}

func (r *Router) openAccessLog() (err error) {
	if r.config.Log.Access == "" {
		return nil
	}
	outage := logfile.Outage{Log: r.log, Name: "access log"}
	r.access, err = accesslog.New(accesslog.Options{
		Path: r.config.Log.Access, Queue: r.config.Log.AccessQueue, Dropped: r.metrics.AccessDropped.Inc,
		Failed: func(err error, lines int) {
			r.metrics.AccessDropped.Add(float64(lines))
			outage.Failed(err, lines)
		},
		Worked: outage.Worked,
	})
	if err != nil {
		return accessLogProblem(err)
	}
	return nil
}

// joinFleet prepares the sources of nodes.
func (r *Router) joinFleet() error {
	c := r.config
	backends, err := c.backends()
	if err != nil {
		return err
	}
	r.settled = make(chan struct{}, 1)
	o := fleet.Options{
		Backends: backends, Models: c.modelSettings(), Policies: r.applyModelPolicies, Index: r.index, Logger: r.log,
		Settings: func() { await.Wake(r.settled) },
		Lag:      func(d time.Duration) { r.metrics.SignalLag.Observe(d.Seconds()) },
		EventLag: func(d time.Duration) { r.metrics.EventLag.Observe(d.Seconds()) },
		Pool:     relay.PoolOptions{DialTimeout: c.Timeouts.Dial.Std(), Watch: c.Router.WatchNodes},
		Warm:     c.Router.Warm,
		Cordoned: r.cordoned,
		Stored:   r.stored,
	}
	if len(c.Etcd.Endpoints) > 0 {
		if r.cluster, err = dialEtcd(&c.Etcd); err != nil {
			return err
		}
		o.Cluster = r.cluster
	}
	if o.AgentTLS, err = c.Upstream.client(pki.Agent); err != nil {
		return err
	}
	cacheTLS, err := c.Upstream.client(pki.KVCached, pki.Agent)
	if err != nil {
		return err
	}
	r.backends.Store(&backends)
	r.events = kvevents.New(kvevents.Options{Model: r.onlyModel, Adapter: r.adapterUsed, Logger: r.log})
	r.holdings = holdings.New(holdings.Options{
		Cluster: r.cluster, Static: staticCaches(backends), Setting: r.cacheSetting, Local: r.events.Watch,
		TLS:       cacheTLS,
		MaxBlocks: c.Prefix.MaxHeld, NoEngines: !c.Prefix.KVEvents, Promote: promoteModes[c.Router.Promote],
		Logger: r.log,
	})
	if r.fleet, err = fleet.New(o); err != nil {
		return err
	}
	if at := c.Router.KernelEvents; at != "" {
		r.peers = peerevents.New(peerevents.Options{Path: at, Fleet: r.fleet, Logger: r.log})
	}
	return nil
}

// assemble connects the parts of the request path.
func (r *Router) assemble() {
	c := r.config
	r.book.Put(c.limitSettings())
	r.gate = admission.New(admission.Options{MaxQueue: c.Router.Admission.MaxQueue, Global: c.Router.Admission.Global})
	var memo *where.Memo
	if c.Prefix.Memo > 0 {
		memo = where.NewMemo(int(c.Prefix.Memo))
	}
	stored := affinity.New(c.Limits.ResponseIDs)
	r.sessions = c.Router.Session.sessions()
	waiting := c.Router.Queue.waiting()
	r.queue = waiting.Queue
	r.legs = leg.New(leg.Parts{
		Fleet: r.fleet, Policy: &r.policy, Gate: r.gate, Metrics: r.metrics, Stored: stored, Logger: r.log,
		Busy: r.busy,
		Where: &where.Finder{
			Index: r.index, Memo: memo, Holdings: r.holdings, Tokens: r.tokens.set, Learned: r.tokens.taught,
			Metrics: r.metrics,
		},
		Budget: admission.NewBudget(c.Retry.Percent, c.Retry.Floor, nil), Sessions: r.sessions,
		Waiting: waiting,
	}, c.legOptions())
	r.plans = plan.New(plan.Parts{
		Legs: r.legs, Fleet: r.fleet, Stored: stored, Metrics: r.metrics, Logger: r.log,
		Cascades: c.Router.Cascade.parts(),
		Resume:   c.Router.Resume.settings(c.Retry.MaxNodes, c.Limits.MaxBodyTotal),
	})
	r.thresholds = &thresholds{r.fleet, r.busy, r.log}
	parts := gateway.Parts{
		Plans: r.plans, Scans: memo.Scans(), Fleet: r.fleet, Metrics: r.metrics,
		Watcher: r.watcher, Loops: r.loops, Access: r.access, Traces: r.traces, Auth: r.door, Salts: r.salts,
		Audit: r.audit, Limits: &r.book, Shared: r.shared, Tally: r.tally, Logger: r.log, Admin: c.Router.Admin,
	}
	if r.door != nil {
		parts.Thresholds = r.auditedThresholds
	}
	bounds := c.gatewayLimits(maxConnections(c.Limits.MaxConnections, r.log))
	r.gateway = gateway.New(parts, bounds, c.Router.ForwardAuth)
	r.applyPolicy()
	r.observe()
	r.admins = &adminRights{c.Router.Admin, &c.AdminTLS, r.door}
	r.admin = adminport.New(r.handover.closing(r.audited(r.adminRoutes())), r.adminTLS, r.log)
	r.admin.ConnState = r.handover.count
}

// Run serves until drain ends, then drains. In the drain, readiness becomes false while accepting
// continues for drain_delay. Then running requests have drain_timeout to finish. The end of force
// cuts the drain short.
//
// If takeover.start is set, Run serves once it is ready. When another router takes over, Run ends
// as after drain, but accepts nothing more. Run returns when nothing is left running.
func (r *Router) Run(drain, force context.Context) error {
	defer r.Close()
	work, stop := context.WithCancel(force)
	defer stop()
	g := lifecycle.NewGroup(work)
	g.Go("fleet", r.fleet.Run)
	g.Go("legs", r.legs.Run)
	if r.queue != nil {
		g.Go("queue", r.queue.Run)
	}
	g.Go("holdings", r.holdings.Run)
	g.Go("kv events", r.events.Run)
	g.Go("agents' events", r.followAgents)
	g.Go("policy", r.followPolicy)
	g.Go("models", r.followModels)
	if r.keys != nil {
		g.Go("API keys", r.keys.Run)
	}
	if v := r.tokenVerifier(); v != nil {
		g.Go("OIDC", v.Run)
	}
	if r.shared != nil {
		g.Go("shared limits", r.shared.Run)
	}
	if r.tally != nil {
		g.Go("usage", r.tally.Run)
	}
	if r.peers != nil {
		g.Go("kernel events", r.peers.Run)
	}
	if r.handover.claim != nil {
		if err := r.await(g.Context(), drain); err != nil {
			g.Stop()
			return errors.Join(fmt.Errorf("--takeover: %w", err), g.Wait())
		}
	}
	g.Go("admin", func(context.Context) error { return r.admin.Serve(r.adminAt) })
	g.Go("serve", func(context.Context) error { return r.gateway.Serve(r.serving, r.tls) })
	r.serves()
	r.started()
	r.offer(g)
	r.log.Info("router serves", "address", r.serving.Addr().String(), "admin", r.adminAt.Addr().String(), "mode",
		r.policy.Load().Mode.String(), "auth", r.config.identities())
	g.Go("drain", func(ctx context.Context) error {
		select {
		case <-drain.Done():
		case <-ctx.Done():
		case <-r.handover.ready:
		}
		if r.handover.settle() {
			r.retire(force)
		} else {
			r.drain(force)
		}
		g.Stop()
		return nil
	})
	return g.Wait()
}

// drain takes the process out of service, step by step.
func (r *Router) drain(force context.Context) {
	delay, timeout := r.config.Router.DrainDelay, r.config.Router.DrainTimeout
	r.log.Info("stopping: requests are taken for drain_delay more, running ones have drain_timeout then; a second "+
		"signal ends it now",
		"drain_delay", delay.String(), "drain_timeout", timeout.String())
	r.acted("signal", "stop", "", nil)
	r.gateway.StartDrain()
	lifecycle.Drain(force, r.log,
		lifecycle.Step{Name: "announce that readiness is gone", Run: func(ctx context.Context) error {
			select {
			case <-time.After(delay.Std()):
			case <-ctx.Done():
			}
			return nil
		}},
		lifecycle.Step{Name: "finish running requests", Limit: max(timeout.Std(), time.Millisecond),
			Run: r.gateway.Shutdown},
		lifecycle.Step{Name: "close the admin port", Limit: time.Second, Run: r.admin.Shutdown},
	)
}

// Close frees everything that New has made. Run itself calls Close.
func (r *Router) Close() {
	for _, l := range []net.Listener{r.serving, r.adminAt} {
		if l != nil {
			l.Close()
		}
	}
	if r.handover.at != nil {
		r.handover.at.Close()
	}
	if r.handover.claim != nil {
		r.handover.claim.Close()
	}
	if r.loops != nil {
		r.loops.Close()
	}
	if r.watcher != nil {
		r.watcher.Close()
	}
	if r.index != nil {
		r.index.Close()
	}
	if r.cluster != nil {
		r.cluster.Close()
	}
	if err := r.tally.Close(); err != nil { // before the logs, which may hang
		r.log.Error("usage is lost", "usage.dir", r.config.Usage.Dir, "error", err)
	}
	if r.access != nil {
		r.access.Close()
	}
	r.audit.Close()
	r.traces.Close()
}
