package agent

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/pki"
)

// Bounds of the drain's steps that the configuration does not set.
const (
	leaveLimit = 5 * time.Second
	closeLimit = 5 * time.Second
	adminLimit = time.Second
)

// Agent is one host's daemon: one node for each engine, and the parts that the nodes share. New
// makes an Agent. Its user calls Run once, or Close.
type Agent struct {
	config   *Config
	log      *slog.Logger
	adminAt  net.Listener
	adminTLS *tls.Config   // nil: plain HTTP
	identity *pki.Identity // identity of the fronts; nil without TLS
	etcd     cluster.Config
	nodes    []*node // at least one
	host     *host
	metrics  *instruments
	draining atomic.Bool
	audit    *audit.Log // nil: off

	telemetry *telemetry.Telemetry
	peers     peers
	pushAt    net.Listener // nil: load is not pushed to routers
	push      *push.Server // nil: load is not pushed to routers
	latest    hostReading  // memory that offer reuses, as is readings
	readings  []load.Reading
}

// New checks c, binds all listeners and prepares every part. New starts, asks and announces
// nothing; Run does.
func New(c Config) (*Agent, error) {
	if err := config.Check(&c); err != nil {
		return nil, err
	}
	a := &Agent{config: &c, log: cmp.Or(c.Logger, slog.Default()), metrics: newInstruments()}
	for _, note := range c.Advise() {
		a.log.Warn("a setting does less than it seems to", "warning", note)
	}
	if err := a.prepare(); err != nil {
		a.Close()
		return nil, err
	}
	return a, nil
}

func (a *Agent) prepare() (err error) {
	if err := a.loadFiles(); err != nil {
		return err
	}
	if a.audit, err = a.config.Audit.Open("cgn-agent", a.metrics.audit, a.log); err != nil {
		return err
	}
	logfile.Advise(a.log, a.config.Logs()...)
	if a.adminAt, err = listen.OpenFor("agent.admin", "--admin", a.config.Agent.Admin); err != nil {
		return err
	}
	for i, u := range a.config.units() {
		n := &node{agent: a, unit: u, index: i}
		a.nodes = append(a.nodes, n)
		if err := n.listen(); err != nil {
			return err
		}
	}
	if err := errors.Join(a.checkIDs(), a.preparePush()); err != nil {
		return err
	}
	for _, n := range a.nodes {
		if err := n.prepare(); err != nil {
			return err
		}
	}
	a.prepareTelemetry()
	if a.host, err = newHost(a); err != nil {
		return err
	}
	if err := a.preparePeers(); err != nil {
		return err
	}
	a.metrics.watch(a)
	return nil
}

// loadFiles reads the certificates of the fronts and the admin port, and the credentials for etcd.
func (a *Agent) loadFiles() (err error) {
	c := a.config
	if c.TLS.Cert != "" {
		files := pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}
		if a.identity, err = pki.Load(files); err != nil {
			return files.Explain("tls.ca", "tls.cert", "tls.key", err)
		}
	}
	if a.adminTLS, err = c.AdminTLS.Config(); err != nil {
		return err
	}
	a.etcd, err = c.Etcd.Config()
	return err
}

// checkIDs refuses two nodes with the same id. Two sockets with the same file name lead to equal
// ids.
func (a *Agent) checkIDs() error {
	for i, n := range a.nodes {
		for _, other := range a.nodes[:i] {
			if n.id() == other.id() {
				return fmt.Errorf("%s: the node would have the name %q, as %s has; give each engine an id",
					n.unit.name("id"), n.id(), other.unit.name("listen"))
			}
		}
	}
	return nil
}

// Close releases an agent that is not going to run.
func (a *Agent) Close() {
	for _, ln := range []net.Listener{a.adminAt, a.pushAt} {
		if ln != nil {
			_ = ln.Close()
		}
	}
	if a.peers.at != nil {
		_ = a.peers.at.Close()
	}
	for _, n := range a.nodes {
		n.close()
	}
	if a.host != nil {
		a.host.power.Close()
	}
	_ = a.audit.Close() // its losses are counted and logged
}

// NodeAt is a node's name in the fleet, and the URL that it announces to routers.
type NodeAt struct{ ID, Address string }

// Nodes returns the agent's nodes, in the order of the configuration.
func (a *Agent) Nodes() []NodeAt {
	all := make([]NodeAt, len(a.nodes))
	for i, n := range a.nodes {
		all[i] = NodeAt{n.described.NodeID, n.described.Address}
	}
	return all
}

// AdminAddr is the address of the admin listener.
func (a *Agent) AdminAddr() net.Addr { return a.adminAt.Addr() }

// notify makes each node write its state to etcd soon.
func (a *Agent) notify() {
	for _, n := range a.nodes {
		n.member.notify()
	}
}
