// Package router is the cgn-router daemon as a library. The daemon is an OpenAI-compatible port in
// front of a fleet of inference engines.
package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/gateway"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/where"
)

// Router is one router process. Make a Router with New, then Run it once, or Close it.
type Router struct {
	config   *Config
	log      *slog.Logger
	metrics  *metrics.Router
	ports    ports
	handover handover
	known    knowledge
	policies policies
	callers  callers
	records  records

	// These parts answer requests.
	gate       *admission.Gate
	busy       *busy.Settings
	thresholds *thresholds
	watcher    *relay.Watcher
	loops      *relay.Loops
	sessions   *affinity.Sessions // nil: off
	queue      *queue.Queue       // nil: off
	legs       *leg.Dispatcher
	plans      *plan.Planner
	gateway    *gateway.Gateway
	admin      *adminport.Server

	audit        *audit.Log  // nil: off
	reloadFailed atomic.Bool // the last reload failed
}

// New checks c, binds both listeners and prepares all parts. The router serves nothing before Run.
func New(c Config) (r *Router, err error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	r = &Router{config: &c, log: cmp.Or(c.Logger, slog.Default()), metrics: metrics.New(), busy: new(busy.Settings)}
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
	if r.watcher, err = relay.NewWatcher(); err != nil {
		return r, fmt.Errorf("watching client connections: %w", err)
	}
	if r.loops, err = relay.NewLoops(relay.LoopsOptions{Lag: r.metrics.RelayLag.Observe, Panicked: r.panicked}); err !=
		nil {
		return r, fmt.Errorf("starting the relay's loops: %w", err)
	}
	if err = r.records.open(r); err != nil {
		return r, err
	}
	if r.audit, err = c.Audit.Open("cgn-router", r.metrics.Audit, r.log); err != nil {
		return r, err
	}
	logfile.Advise(r.log, c.Logs()...)
	if err = r.joinFleet(); err != nil {
		return r, err
	}
	if err = r.startPolicy(); err != nil {
		return r, err
	}
	if err = r.openDoor(); err != nil {
		return r, err
	}
	if r.callers.shared, err = c.RateLimit.open(r.log); err != nil {
		return r, err
	}
	if r.known.tokens, err = c.loadTokens(r.log); err != nil {
		return r, err
	}
	r.assemble()
	return r, nil
}

// panicked is called when a bug has ended a stream.
func (r *Router) panicked(p any) {
	r.log.Error("a stream failed, this is a bug", "panic", p)
	r.metrics.Panics.Inc()
}

// assemble connects the parts of the request path.
func (r *Router) assemble() {
	c := r.config
	r.callers.book.Put(c.limitSettings())
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
		Fleet: r.known.fleet, Policy: &r.policies.current, Gate: r.gate, Metrics: r.metrics, Stored: stored,
		Logger: r.log, Busy: r.busy,
		Where: &where.Finder{
			Index: r.known.index, Memo: memo, Holdings: r.known.holdings, Tokens: r.known.tokens.set,
			Learned: r.known.tokens.taught, Metrics: r.metrics,
		},
		Budget: admission.NewBudget(c.Retry.Percent, c.Retry.Floor, nil), Sessions: r.sessions,
		Waiting: waiting,
	}, c.legOptions())
	r.plans = plan.New(plan.Parts{
		Legs: r.legs, Fleet: r.known.fleet, Stored: stored, Metrics: r.metrics, Logger: r.log,
		Cascades: c.Router.Cascade.parts(),
		Resume:   c.Router.Resume.settings(c.Retry.MaxNodes, c.Limits.MaxBodyTotal),
	})
	r.thresholds = &thresholds{r.known.fleet, r.busy, r.log}
	parts := gateway.Parts{
		Plans: r.plans, Scans: memo.Scans(), Fleet: r.known.fleet, Metrics: r.metrics,
		Watcher: r.watcher, Loops: r.loops, Audit: r.audit, Logger: r.log, Admin: c.Router.Admin,
		Access: r.records.access, Traces: r.records.traces, Tally: r.records.tally,
		Auth: r.callers.door, Salts: r.callers.salts, Limits: &r.callers.book, Shared: r.callers.shared,
	}
	if r.callers.door != nil {
		parts.Thresholds = r.auditedThresholds
	}
	bounds := c.gatewayLimits(maxConnections(c.Limits.MaxConnections, r.log))
	r.gateway = gateway.New(parts, bounds, c.Router.ForwardAuth)
	r.applyPolicy()
	r.observe()
	r.callers.admins = &adminRights{c.Router.Admin, &c.AdminTLS, r.callers.door}
	admin := adminport.Audited(r.audit, changes(), r.adminRoutes())
	r.admin = adminport.New(r.handover.closing(admin), r.ports.adminTLS, r.log)
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
	g.Go("fleet", r.known.fleet.Run)
	g.Go("legs", r.legs.Run)
	if r.queue != nil {
		g.Go("queue", r.queue.Run)
	}
	g.Go("holdings", r.known.holdings.Run)
	g.Go("kv events", r.known.events.Run)
	g.Go("agents' events", r.followAgents)
	g.Go("policy", r.followPolicy)
	g.Go("models", r.known.followModels)
	if r.callers.keys != nil {
		g.Go("API keys", r.callers.keys.Run)
	}
	if v := r.callers.tokenVerifier(); v != nil {
		g.Go("OIDC", v.Run)
	}
	if r.callers.shared != nil {
		g.Go("shared limits", r.callers.shared.Run)
	}
	if r.records.tally != nil {
		g.Go("usage", r.records.tally.Run)
	}
	if r.known.peers != nil {
		g.Go("kernel events", r.known.peers.Run)
	}
	if r.handover.claim != nil {
		if err := r.await(g.Context(), drain); err != nil {
			g.Stop()
			return errors.Join(fmt.Errorf("--takeover: %w", err), g.Wait())
		}
	}
	g.Go("admin", func(context.Context) error { return r.admin.Serve(r.ports.admin) })
	g.Go("serve", func(context.Context) error { return r.gateway.Serve(r.ports.serving, r.ports.servingTLS) })
	r.serves()
	r.started()
	r.offer(g)
	r.log.Info("router serves", "address", r.Addr().String(), "admin", r.AdminAddr().String(), "mode",
		r.policies.current.Load().Mode.String(), "auth", r.config.identities())
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
	r.ports.close()
	r.handover.close()
	if r.loops != nil {
		r.loops.Close()
	}
	if r.watcher != nil {
		r.watcher.Close()
	}
	r.known.close()
	if err := r.records.close(); err != nil {
		r.log.Error("usage is lost", "usage.dir", r.config.Usage.Dir, "error", err)
	}
	r.audit.Close()
}
