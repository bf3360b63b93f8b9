package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lifecycle"
)

// Run serves until ctx ends, and then drains. The drain announces that no node is ready, serves
// until requests have finished or DrainTimeout has passed, breaks off changes of adapters, removes
// the nodes from etcd, and stops the engines that the agent started. The end of force cuts every
// wait short. If a part fails, Run drains the others and returns an error. A node id that another
// agent holds counts as a failure of a part. A dead engine only makes its own node unready.
func (a *Agent) Run(ctx, force context.Context) error {
	// kernel = "bpf" refuses to start without programs, before an engine runs or routers know of it
	if a.config.Telemetry.Kernel == "bpf" {
		if err := a.telemetry.Open(); err != nil {
			a.Close()
			return fmt.Errorf("telemetry.kernel is bpf, and programs cannot be loaded: %w", err)
		}
	}
	r := a.start(force)
	for _, n := range a.nodes {
		n.log.Info("agent runs", "address", n.described.Address, "admin", a.adminAt.Addr().String(), "engine",
			n.engine.URL(), "kind", n.described.Engine, "etcd", a.etcdState())
	}
	a.started()
	defer a.audit.Close()
	select {
	case <-ctx.Done():
		a.audit.Stops(nil)
	case <-r.group.Context().Done():
		failed := context.Cause(r.group.Context())
		a.log.Error("a part of the agent failed, stopping", "error", failed)
		a.audit.Stops(failed)
	}
	a.log.Info("stopping: requests are taken for drain_delay more, running ones have drain_timeout then; a second "+
		"signal ends it now",
		"drain_delay", a.config.Agent.DrainDelay.String(), "drain_timeout", a.config.Agent.DrainTimeout.String())
	a.draining.Store(true)
	a.notify()
	r.drain(force) // the failures in the drain are logged already
	return r.group.Wait()
}

// running holds the started parts of an agent, and the functions that end them.
type running struct {
	agent               *Agent
	group               *lifecycle.Group
	admin               *adminport.Server
	stopEngines, leave  context.CancelFunc
	enginesGone, leftAt chan struct{}
}

// start starts every part. The parts' context does not end when a part fails: the drain ends the
// parts in order.
func (a *Agent) start(force context.Context) *running {
	life := context.Background()
	r := &running{agent: a, group: lifecycle.NewGroup(life), admin: a.admin(), enginesGone: make(chan struct{}),
		leftAt: make(chan struct{})}
	engineLife, stopEngines := context.WithCancel(life)
	memberLife, leave := context.WithCancel(life)
	r.stopEngines, r.leave = stopEngines, leave

	var engines sync.WaitGroup
	for _, n := range a.nodes {
		engines.Add(1)
		r.group.Go("engine", func(context.Context) error {
			defer engines.Done()
			n.engine.Run(engineLife, force)
			return nil
		})
		r.group.Go("front", func(context.Context) error { return n.front.Serve(n.listener) })
		r.until(memberLife, "kv events", n.events.follow)
		r.group.Go("watchers", func(context.Context) error { return n.serveEvents(memberLife) })
		r.until(memberLife, "changes", n.forwardChanges)
	}
	r.group.Go("engines", func(context.Context) error {
		engines.Wait()
		close(r.enginesGone)
		return nil
	})
	r.group.Go("admin", func(context.Context) error { return r.admin.Serve(a.adminAt) })
	r.group.Go("registration", func(context.Context) error {
		defer close(r.leftAt)
		return r.register(memberLife)
	})
	r.until(memberLife, "gpus", a.host.gpus.Run)
	r.until(memberLife, "power", a.host.power.Run)
	r.until(memberLife, "kernel events", a.tellPeers)
	r.group.Go("telemetry", func(context.Context) error { return a.runTelemetry(memberLife) })
	if a.push != nil {
		r.group.Go("push", func(context.Context) error { return a.push.Serve(memberLife, a.pushAt) })
	}
	return r
}

// until starts a part that cannot fail and that runs until ctx ends.
func (r *running) until(ctx context.Context, name string, part func(context.Context)) {
	r.group.Go(name, func(context.Context) error {
		part(ctx)
		return nil
	})
}

// register keeps every node announced until ctx ends, over one connection. register returns when
// all nodes are removed from etcd.
func (r *running) register(ctx context.Context) error {
	a := r.agent
	if len(a.etcd.Endpoints) == 0 {
		a.log.Info("no etcd endpoints: no node is announced")
		return nil
	}
	client, err := cluster.Connect(ctx, a.etcd, a.log)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	var members sync.WaitGroup
	for _, n := range a.nodes {
		members.Add(1)
		// a failure makes the agent drain, so that the other nodes leave in order
		r.group.Go("registration of "+n.id(), func(context.Context) error {
			defer members.Done()
			return n.member.run(ctx, client)
		})
	}
	members.Wait()
	return nil
}

func (r *running) drain(force context.Context) {
	a := r.agent
	_ = lifecycle.Drain(force, a.log,
		lifecycle.Step{Name: "let routers know", Run: func(ctx context.Context) error {
			return a.awaitDrainDelay(ctx)
		}},
		lifecycle.Step{Name: "finish requests", Limit: max(a.config.Agent.DrainTimeout.Std(), time.Millisecond),
			Run: func(ctx context.Context) error {
				return a.each(func(n *node) error { return n.front.Drain(ctx) })
			}},
		lifecycle.Step{Name: "end changes of adapters", Run: func(context.Context) error {
			return a.each(func(n *node) error { n.engine.EndChanges(); return nil }) // they would hold the front
		}},
		lifecycle.Step{Name: "leave the fleet", Limit: leaveLimit, Run: func(ctx context.Context) error {
			r.leave()
			return ended(ctx, r.leftAt)
		}},
		lifecycle.Step{Name: "close the front", Limit: closeLimit, Run: func(ctx context.Context) error {
			return a.each(func(n *node) error { return n.front.Shutdown(ctx) })
		}},
		lifecycle.Step{Name: "stop the engine", Run: func(context.Context) error {
			r.stopEngines()
			<-r.enginesGone // bounded by each engine's StopGrace, and by force
			return nil
		}},
		lifecycle.Step{Name: "close the admin port", Limit: adminLimit, Run: r.admin.Stop},
	)
}

// each calls fn for all nodes concurrently and joins their errors.
func (a *Agent) each(fn func(*node) error) error {
	errs := make([]error, len(a.nodes))
	var wg sync.WaitGroup
	for i, n := range a.nodes {
		wg.Go(func() {
			errs[i] = fn(n)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// awaitDrainDelay gives routers time to read that the nodes take no new requests. Each node's state
// says so from the beginning of the drain.
func (a *Agent) awaitDrainDelay(ctx context.Context) error {
	if !await.For(ctx, a.config.Agent.DrainDelay.Std()) {
		return ctx.Err()
	}
	return nil
}

func ended(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
