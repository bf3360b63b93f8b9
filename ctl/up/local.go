package up

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/agent"
	agentengine "github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

const heartbeat = time.Second

// drainRequests is the time for running requests after Ctrl-C. Tests shorten the time.
var drainRequests = 5 * time.Second

// afterRequests is the time that all parts have beyond drainRequests before they must end at once.
const afterRequests = time.Second

// local is the fleet of `up` in this process.
type local struct {
	flags   *flags
	parts   *parts
	dir     string
	leave   func() error
	etcd    string // client address; "" with --backend
	routers []routerAt
	nodes   []nodeAt
	cache   *cacheAt // nil with --backend
	notes   []string // differences from what the user might expect
}

type routerAt struct {
	Listen string `json:"listen"`
	Admin  string `json:"admin"`
}

type nodeAt struct {
	ID      string `json:"id"`
	Address string `json:"address"` // address of its agent
	Engine  string `json:"engine"`  // its engine
}

// start starts all parts, each after the parts that it needs. The parts run until ctx ends.
func (l *local) start(ctx context.Context) error {
	var err error
	if l.dir, l.leave, err = l.flags.directory(); err != nil {
		return err
	}
	reserved, err := l.reserveRouters()
	defer func() {
		for _, ln := range reserved {
			_ = ln.Close()
		}
	}()
	if err != nil {
		return err
	}
	if err := l.checkRouters(); err != nil {
		return err
	}
	if len(l.flags.backends) == 0 {
		if err := l.startNodes(ctx); err != nil {
			return err
		}
	}
	for i, at := range l.routers {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		_ = reserved[2*i].Close()
		_ = reserved[2*i+1].Close()
		if err := l.startRouter(i, at); err != nil {
			return err
		}
	}
	return nil
}

// checkRouters refuses invalid flags before any program runs.
func (l *local) checkRouters() error {
	c, err := l.routerConfig(l.routers[0], etcd.Default)
	if err != nil {
		return err
	}
	return config.Check(&c)
}

// reserveRouters sets the routers' addresses. The first router has the address in the flags, and
// the others have free ports of the same hosts.
func (l *local) reserveRouters() (reserved []net.Listener, err error) {
	f := l.flags
	for i := range f.routers {
		for _, want := range []struct {
			flag, addr string
			given      bool
		}{{"--listen", f.listen, f.listenGiven}, {"--admin", f.admin, f.adminGiven}} {
			addr := want.addr
			if i > 0 {
				host, _, _ := net.SplitHostPort(addr)
				addr = net.JoinHostPort(host, "0")
			}
			ln, err := reserve(want.flag, addr, want.given)
			if err != nil {
				return reserved, err
			}
			reserved = append(reserved, ln)
			if i == 0 && !want.given {
				l.noteMoved(want.flag, addr, ln)
			}
		}
		l.routers = append(l.routers, routerAt{settled(f.listen, reserved[2*i]), settled(f.admin, reserved[2*i+1])})
	}
	return reserved, nil
}

// noteMoved adds a note that a program has another address than usual, because the usual address is
// in use. what names the program.
func (l *local) noteMoved(what, usual string, ln net.Listener) {
	if at := ln.Addr().String(); at != usual {
		l.notes = append(l.notes, fmt.Sprintf("%s is in use%s: %s took %s instead", usual, listen.ByHolder(usual),
			what, at))
	}
}

// settled returns the address of ln, with its host as the user has written it.
func settled(wanted string, ln net.Listener) string {
	host, _, _ := net.SplitHostPort(wanted)
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	return net.JoinHostPort(host, port)
}

func (l *local) startNodes(ctx context.Context) error {
	if err := l.startEtcd(ctx); err != nil {
		return err
	}
	if err := l.startCache(); err != nil {
		return err
	}
	for i, n := range l.flags.started() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := l.startNode(i+1, n); err != nil {
			return err
		}
	}
	return nil
}

// startEtcd uses etcd's usual port if it is free, so that cgn-ctl needs no --etcd, or the port in
// the flag.
func (l *local) startEtcd(ctx context.Context) error {
	dir, at, fixed := filepath.Join(l.dir, "etcd"), l.flags.etcd, l.flags.etcdGiven
	s, err := etcdserver.StartContext(ctx, dir, at)
	busy := errors.Is(err, syscall.EADDRINUSE)
	if busy && !fixed {
		if s, err = etcdserver.StartContext(ctx, dir, "127.0.0.1:0"); err == nil {
			l.notes = append(l.notes,
				fmt.Sprintf("%s is in use%s: etcd took %s instead, and agents that are not started here find the "+
					"fleet there only.\n"+
					"      Give them --etcd %s, or --etcd-listen here for a port that stays", at, listen.ByHolder(at),
					s.Endpoint(), s.Endpoint()))
		}
	}
	switch {
	case busy && fixed:
		err = cli.WithHint(fmt.Errorf("--etcd-listen %s: the port is in use%s", at, listen.ByHolder(at)),
			"stop that program, or give another address with --etcd-listen")
	case err == nil || ctx.Err() != nil || errors.Is(err, etcdserver.ErrFiles):
	case l.flags.data != "":
		err = cli.WithHint(err, "its log is "+filepath.Join(dir, "etcd.log")+"; what is there is only a fleet's live "+
			"state: remove "+dir+" to begin with an empty one")
	}
	if err != nil {
		return err
	}
	l.etcd = s.Endpoint()
	l.parts.run(part{Name: "etcd", Where: s.Endpoint(), What: "fleet state in " + dir},
		func(drain, _ context.Context) error {
			defer s.Close()
			select {
			case err := <-s.Err():
				return err
			case <-drain.Done():
				return nil
			}
		})
	return nil
}

// startNode starts the agent of n, the node number i. startNode also starts its simulated engine,
// unless the agent starts a real engine.
func (l *local) startNode(i int, n started) error {
	var c agent.Config
	if err := config.Defaults(&c); err != nil {
		return err
	}
	c.Agent.Listen, c.Agent.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Agent.Heartbeat = config.Duration(heartbeat)
	c.Agent.DrainDelay, c.Agent.DrainTimeout = 0, config.Duration(drainRequests)
	c.Etcd.Endpoints = []string{l.etcd}
	c.Telemetry.Kernel = "proc" // BPF programs would stay in the kernel after this fleet ends
	c.Agent.NodeID, c.Agent.Role = n.id, string(n.role)
	what := ""
	if l.flags.model != "" {
		c.Engine.Kind, c.Engine.Model, c.Engine.Models = agentengine.LlamaCPP, l.flags.model,
			[]string{l.flags.modelName()}
		c.Engine.Args = []string{"--alias", l.flags.modelName()}
		what = "llama-server with " + l.flags.model
	} else {
		at, err := l.startSim(i, n.sim)
		if err != nil {
			return err
		}
		if n.role != cluster.RoleBoth {
			c.Engine.Connector = cluster.ConnectorNIXL
		}
		c.Engine.URL, c.Agent.MaxConcurrent, c.Agent.TP, c.Agent.DType = at, simSlots, 1, "bfloat16"
		what = "simulated engine at " + at + n.does
	}
	c.Agent.StateDir, c.Agent.KVAddress = filepath.Join(l.dir, c.Agent.NodeID), l.cache.announced()
	a, err := agent.New(c)
	if err != nil {
		return fmt.Errorf("agent %s: %w", c.Agent.NodeID, err)
	}
	address := a.Nodes()[0].Address
	l.nodes = append(l.nodes, nodeAt{c.Agent.NodeID, address, what})
	l.parts.run(part{Name: fmt.Sprintf("agent-%d", i), Where: address, What: fmt.Sprintf("node %s, front of the %s",
		c.Agent.NodeID, what)}, a.Run)
	return nil
}

func (l *local) startSim(i int, set engine.Config) (url string, err error) {
	name := fmt.Sprintf("engine-%d", i)
	set.ID, set.MaxSeqs = name, simSlots
	e, err := engine.New(set)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	l.parts.add(part{Name: name, Where: e.URL(), What: "simulated, model " + set.Models[0]}, func() error {
		e.Close()
		return nil
	})
	return e.URL(), nil
}

func (l *local) routerConfig(at routerAt, etcd string) (c router.Config, err error) {
	if err := config.Defaults(&c); err != nil {
		return c, err
	}
	c.Router.Listen, c.Router.Admin = at.Listen, at.Admin
	l.flags.applyTo(&c)
	c.Router.InsecureListen, c.Router.InsecureAdmin = l.flags.insecure, l.flags.insecure
	c.Router.Backends = l.flags.backends
	c.Limits.MaxConnections = 4096 // fits into the usual limits of open files
	c.Router.DrainDelay, c.Router.DrainTimeout = 0, config.Duration(drainRequests)
	if len(l.flags.backends) == 0 {
		c.Etcd.Endpoints = []string{etcd}
	}
	return c, nil
}

func (l *local) startRouter(i int, at routerAt) error {
	c, err := l.routerConfig(at, l.etcd)
	if err != nil {
		return err
	}
	r, err := router.New(c)
	if err != nil {
		return err
	}
	what := "OpenAI API; admin port http://" + reachable(at.Admin)
	l.parts.run(part{Name: fmt.Sprintf("router-%d", i+1), Where: "http://" + reachable(at.Listen), What: what}, r.Run)
	return nil
}

// stop ends all parts in order, and removes temporary state.
func (l *local) stop(a *cli.App) error {
	err := l.parts.stop(a.Err, drainRequests+afterRequests)
	if l.leave == nil {
		return err
	}
	if l.flags.data != "" {
		fmt.Fprintf(a.Err, "state is kept in %s\n", l.dir)
	}
	return errors.Join(err, l.leave())
}
