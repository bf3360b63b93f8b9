package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/agent/front"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
)

// node is one engine of the agent as the fleet sees it: its front, its place in etcd, and its
// figures.
type node struct {
	agent     *Agent
	unit      *unit
	index     int // index in Agent.nodes and in the telemetry's targets
	log       *slog.Logger
	described cluster.NodeHealth // the part of the node's health that never changes
	listener  net.Listener       // listener of the front
	engine    *engine.Engine
	front     *front.Server
	member    *membership
	events    eventFeed
	count     nodeInstruments
}

// id returns the node's name in the fleet.
func (n *node) id() string { return n.described.NodeID }

// listen binds the front. The node's name follows from the bound address.
func (n *node) listen() (err error) {
	u := n.unit
	if n.listener, err = listen.OpenFor(u.name("listen"), u.flag("--listen"), u.Listen); err != nil {
		return err
	}
	addr := n.listener.Addr()
	n.described = u.describe(u.nodeID(addr), u.advertised(addr))
	n.log = n.agent.log.With("node", n.described.NodeID)
	return n.described.Check()
}

// prepare makes the node's parts. The push address must be known before prepare.
func (n *node) prepare() (err error) {
	n.count = n.agent.metrics.of(n.id())
	if n.agent.pushAt != nil {
		n.described.PushAddress = n.agent.config.pushAdvertised(n.agent.pushAt.Addr(), n.agent.nodes[0])
	}
	if err = n.prepareEngine(); err != nil {
		return err
	}
	if err = n.prepareEvents(); err != nil {
		return err
	}
	if err = n.prepareMember(); err != nil {
		return err
	}
	return n.prepareFront()
}

func (n *node) prepareEngine() (err error) {
	u := n.unit
	n.engine, err = engine.New(&u.Engine, engine.Options{
		TP: u.TP, DataParallel: u.DataParallel, DType: u.DType, MaxConcurrent: u.MaxConcurrent, GPUs: u.visible(),
		Role: u.Role, Host: hostOf(n.described.Address), StateDir: n.stateDir(), Node: n.id(),
		PortTaken: n.agent.portTaken,
		Held:      func() int { return n.front.InFlight() }, Counters: n.count.engine, Logger: n.log,
	})
	return u.named(err)
}

// portTaken tells whether another engine of the agent is going to listen on this port.
func (a *Agent) portTaken(port int) bool {
	at := net.JoinHostPort("", fmt.Sprint(port))
	for _, n := range a.nodes {
		if n.engine != nil && listen.Overlap(n.engine.Endpoint().Addr, at) {
			return true
		}
		if _, own := n.unit.engineAt(); listen.Overlap(own, at) {
			return true
		}
	}
	return false
}

// stateDir is the directory for the engine's files. With several engines, each engine has its own
// directory.
func (n *node) stateDir() string {
	dir := n.agent.config.Agent.StateDir
	if dir == "" || n.unit.element == "" {
		return dir
	}
	return filepath.Join(dir, n.id())
}

func (n *node) prepareMember() error {
	c := n.agent.config
	token, err := cluster.Token(c.Agent.StateDir)
	if err != nil {
		return fmt.Errorf("agent.state_dir: %w", err)
	}
	n.member = &membership{registration: cluster.Registration{
		Health: func() cluster.Record { h := n.health(); return &h }, Heartbeat: c.Agent.Heartbeat.Std(),
		Instance: token, Reclaimed: n.count.reclaimed.Inc, Tried: func(err error) { n.member.tried(err) },
		Logger: n.log,
	}}
	return nil
}

func (n *node) prepareFront() error {
	c := n.agent.config
	engineTLS, err := n.unit.Engine.EngineTLS(n.engine.Endpoint())
	if err != nil {
		return err
	}
	hands, _ := n.unit.Engine.Handover(n.unit.Role)
	o := front.Options{
		Engine: n.engine.Endpoint(), EngineTLS: engineTLS, Authorization: n.engine.Authorization(),
		ForwardAuth: c.Agent.ForwardAuth,
		EngineOnce:  n.unit.Engine.Kind == engine.LlamaCPP,
		ServerInfo:  hands == cluster.ConnectorTRTLLMGeneration,
		Adapters:    n.changeAdapter, Authenticated: c.authenticates(),
		Health: n.unready, Limits: c.Limits.front(), Counters: n.count.front, Logger: n.log,
		Audit: n.agent.audit, Node: n.id(),
	}
	if n.agent.identity != nil {
		o.TLS = n.agent.identity.Server(c.TLS.CA != "", pki.Router, pki.Ctl)
	}
	n.front, err = front.New(o)
	return err
}

// changeAdapter loads or unloads a LoRA adapter of the engine.
func (n *node) changeAdapter(c front.AdapterChange) (status int, contentType string, answer []byte) {
	return n.engine.ChangeAdapter(c.Unload, c.Name, c.Path)
}

// close releases a node that is not going to run.
func (n *node) close() {
	for _, ln := range []net.Listener{n.listener, n.events.listener} {
		if ln != nil {
			_ = ln.Close()
		}
	}
	if n.events.daemon != nil {
		_ = n.events.daemon.Close()
	}
	if n.front != nil {
		n.front.Close()
	}
}

// unready returns why the node takes no requests; "" while it takes requests.
func (n *node) unready() string {
	switch s := n.engine.State(); {
	case n.agent.draining.Load():
		return "agent is stopping"
	case !s.Ready:
		return s.Reason
	}
	return ""
}

func (n *node) ready() bool { return n.unready() == "" }

// forwardChanges announces a change of the engine without waiting for the next heartbeat.
func (n *node) forwardChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.engine.Changed():
			s := n.engine.State()
			n.events.restarted(s.Epoch)
			n.events.fit(n.ranks(s))
			n.member.notify()
		}
	}
}
