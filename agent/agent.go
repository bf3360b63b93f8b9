package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/agent/power"
	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
)

// Bounds of the steps of a drain that the configuration does not set.
const (
	leaveLimit = 5 * time.Second
	closeLimit = 5 * time.Second
	adminLimit = time.Second
)

// Agent is one node's daemon. Make it with New, then Run it once, or Close it.
type Agent struct {
	config   *Config
	log      *slog.Logger
	listener net.Listener // of the front
	adminAt  net.Listener
	identity *pki.Identity // of the front; nil without TLS
	engine   *engine.Engine
	front    *front.Server
	member   *membership
	node     cluster.NodeHealth // what never changes
	cpu      *cpuMeter
	gpus     *gpu.Monitor
	power    *power.Meter
	metrics  *instruments
	events   events
	draining atomic.Bool

	telemetry *telemetry.Telemetry
	pushAt    net.Listener // nil: routers are not told
	push      *push.Server // likewise
}

// Run is New followed by Agent.Run. The end of ctx starts the drain.
func Run(ctx context.Context, c Config) error {
	a, err := New(c)
	if err != nil {
		return err
	}
	return a.Run(ctx, context.WithoutCancel(ctx))
}

// New checks c, binds both listeners and prepares everything; nothing is
// started, asked or announced before Run.
func New(c Config) (*Agent, error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	a := &Agent{config: &c, log: c.Logger, cpu: newCPUMeter(), metrics: newInstruments()}
	if a.log == nil {
		a.log = slog.Default()
	}
	if err := a.prepare(); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *Agent) prepare() error {
	if err := a.listen(); err != nil {
		return err
	}
	addr := a.listener.Addr()
	a.node = a.config.describe(a.config.nodeID(addr), a.config.advertised(addr))
	if err := a.node.Check(); err != nil {
		return err
	}
	a.log = a.log.With("node", a.node.NodeID)
	if err := a.prepareEngine(); err != nil {
		return err
	}
	if err := errors.Join(a.prepareTelemetry(), a.prepareEvents(), a.prepareMember(), a.prepareMeters()); err != nil {
		return err
	}
	if err := a.prepareFront(); err != nil {
		return err
	}
	a.preparePush()
	a.metrics.watch(a)
	return nil
}

// Close releases an agent that is not going to run.
func (a *Agent) Close() {
	for _, ln := range []net.Listener{a.listener, a.adminAt, a.events.listener, a.pushAt} {
		if ln != nil {
			_ = ln.Close()
		}
	}
	if a.events.daemon != nil {
		_ = a.events.daemon.Close()
	}
	if a.front != nil {
		a.front.Close()
	}
	if a.power != nil {
		a.power.Close()
	}
}

// NodeID is the node's name in the fleet.
func (a *Agent) NodeID() string { return a.node.NodeID }

// Address is the URL that routers are told.
func (a *Agent) Address() string { return a.node.Address }

// AdminAddr is the address of the admin listener.
func (a *Agent) AdminAddr() net.Addr { return a.adminAt.Addr() }

func (a *Agent) listen() (err error) {
	if a.listener, err = listen.OpenFor("agent.listen", "--listen", a.config.Agent.Listen); err == nil {
		a.adminAt, err = listen.OpenFor("agent.admin", "--admin", a.config.Agent.Admin)
	}
	return err
}

func (a *Agent) prepareEngine() (err error) {
	c := a.config
	a.engine, err = engine.New(&c.Engine, engine.Options{
		TP: c.Agent.TP, DType: c.Agent.DType, MaxConcurrent: c.Agent.MaxConcurrent,
		Role: c.Agent.Role, Host: hostOf(a.node.Address), StateDir: c.Agent.StateDir,
		Counters: a.metrics.engine, Log: a.log,
	})
	return err
}

func (a *Agent) prepareMember() error {
	etcd, err := a.config.Etcd.Config()
	if err != nil {
		return err
	}
	token, err := cluster.Token(a.config.Agent.StateDir)
	if err != nil {
		return fmt.Errorf("agent.state_dir: %w", err)
	}
	a.member = &membership{nodeID: a.node.NodeID, log: a.log, config: etcd, registration: cluster.Registration{
		Health: func() cluster.Record { h := a.health(); return &h }, Heartbeat: a.config.Agent.Heartbeat.Std(), Instance: token, Log: a.log,
	}}
	return nil
}

func (a *Agent) prepareFront() error {
	c := a.config
	engineTLS, err := c.Engine.EngineTLS(a.engine.Endpoint())
	if err != nil {
		return err
	}
	o := front.Options{
		Engine: a.engine.Endpoint(), EngineTLS: engineTLS, Authorization: a.engine.Authorization(), ForwardAuth: c.Agent.ForwardAuth,
		EngineOnce: c.Engine.Kind == engine.LlamaCPP,
		Health:     a.unready, Limits: c.Limits.front(), Counters: a.metrics.front, Log: a.log,
	}
	if c.TLS.Cert != "" {
		if a.identity, err = pki.Load(pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}); err != nil {
			return fmt.Errorf("tls: %w", err)
		}
		o.TLS = a.identity.Server(c.TLS.CA != "", pki.Router, pki.Ctl)
	}
	a.front, err = front.New(o)
	return err
}

// unready says why the node takes no requests; "" while it does.
func (a *Agent) unready() string {
	switch s := a.engine.State(); {
	case a.draining.Load():
		return "agent is stopping"
	case !s.Ready:
		return s.Reason
	}
	return ""
}

func (a *Agent) ready() bool { return a.unready() == "" }

// Run serves until ctx ends, then drains: it says that it is not ready, goes on
// serving until its requests have finished or DrainTimeout has passed, takes
// the node out of the fleet and stops an engine that it started. The end of
// force cuts every wait short. Run returns an error where a part fails, after
// draining the others; the node id being held by another agent is one.
func (a *Agent) Run(ctx, force context.Context) error {
	r := a.start(force)
	a.log.Info("agent runs", "address", a.node.Address, "admin", a.adminAt.Addr().String(), "engine", a.engine.URL(), "kind", a.node.Engine, "etcd", a.member.state())
	select {
	case <-ctx.Done():
	case <-r.group.Context().Done():
		a.log.Error("a part of the agent failed, stopping", "error", context.Cause(r.group.Context()))
	}
	a.log.Info("stopping: requests are taken for drain_delay more, running ones have drain_timeout then; a second signal ends it now",
		"drain_delay", a.config.Agent.DrainDelay.String(), "drain_timeout", a.config.Agent.DrainTimeout.String())
	a.draining.Store(true)
	a.member.notify()
	r.drain(force) // what fails in it has been logged
	return r.group.Wait()
}

// running is the started parts of an agent, with what ends each of them.
type running struct {
	agent              *Agent
	group              *lifecycle.Group
	admin              *http.Server
	stopEngine, leave  context.CancelFunc
	engineGone, leftAt chan struct{}
}

// start starts every part. None of them ends with the group: when one fails,
// the drain ends the others in order.
func (a *Agent) start(force context.Context) *running {
	life := context.Background()
	r := &running{agent: a, group: lifecycle.NewGroup(life), admin: a.admin(), engineGone: make(chan struct{}), leftAt: make(chan struct{})}
	engineLife, stopEngine := context.WithCancel(life)
	memberLife, leave := context.WithCancel(life)
	r.stopEngine, r.leave = stopEngine, leave

	r.group.Go("engine", func(context.Context) error {
		defer close(r.engineGone)
		a.engine.Run(engineLife, force)
		return nil
	})
	r.group.Go("front", func(context.Context) error { return a.front.Serve(a.listener) })
	r.group.Go("admin", func(context.Context) error {
		if err := r.admin.Serve(a.adminAt); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	r.group.Go("registration", func(context.Context) error {
		defer close(r.leftAt)
		return a.member.run(memberLife)
	})
	r.group.Go("gpus", func(context.Context) error {
		a.gpus.Run(memberLife)
		return nil
	})
	r.group.Go("power", func(context.Context) error {
		a.power.Run(memberLife)
		return nil
	})
	r.group.Go("kv events", func(context.Context) error {
		a.events.follow(memberLife)
		return nil
	})
	r.group.Go("watchers", func(context.Context) error { return a.serveEvents(memberLife) })
	r.group.Go("telemetry", func(context.Context) error { return a.runTelemetry(memberLife) })
	if a.push != nil {
		r.group.Go("push", func(context.Context) error { return a.push.Serve(memberLife, a.pushAt) })
	}
	r.group.Go("changes", func(context.Context) error {
		a.forwardChanges(memberLife)
		return nil
	})
	return r
}

// forwardChanges announces a change of the engine without waiting for the next heartbeat.
func (a *Agent) forwardChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.engine.Changed():
			a.events.restarted(a.engine.State().Epoch)
			a.member.notify()
		}
	}
}

func (r *running) drain(force context.Context) {
	a := r.agent
	_ = lifecycle.Drain(force, a.log,
		lifecycle.Step{Name: "let routers know", Run: func(ctx context.Context) error {
			return a.sayUnready(ctx)
		}},
		lifecycle.Step{Name: "finish requests", Limit: max(a.config.Agent.DrainTimeout.Std(), time.Millisecond), Run: a.front.Drain},
		lifecycle.Step{Name: "leave the fleet", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.leave()
			return await(ctx, r.leftAt)
		}},
		lifecycle.Step{Name: "close the front", Limit: closeLimit, Run: a.front.Shutdown},
		lifecycle.Step{Name: "stop the engine", Run: func(context.Context) error {
			r.stopEngine()
			<-r.engineGone // its own grace and force bound this
			return nil
		}},
		lifecycle.Step{Name: "close the admin port", Limit: adminLimit, Run: func(ctx context.Context) error {
			return errors.Join(r.admin.Shutdown(ctx), r.admin.Close())
		}},
	)
}

// sayUnready gives routers the time to hear that the node takes nothing new.
func (a *Agent) sayUnready(ctx context.Context) error {
	timer := time.NewTimer(a.config.Agent.DrainDelay.Std())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func await(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
