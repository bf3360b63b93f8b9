package agent

import (
	"context"
	"sync/atomic"

	"github.com/cognitora/dataplane/internal/cluster"
)

// membership is a node's place in the fleet: it announces the node in etcd.
type membership struct {
	registration cluster.Registration

	registrar atomic.Pointer[cluster.Registrar]
	link      atomic.Pointer[string] // connected or lost; nil: not known yet
}

// run keeps the node announced until ctx ends, then removes it from etcd. run fails if another
// agent holds the node id.
func (m *membership) run(ctx context.Context, client *cluster.Client) error {
	r := cluster.NewRegistrar(client, m.registration)
	m.registrar.Store(r)
	return r.Run(ctx)
}

// tried stores the state of the connection to etcd after an attempt to write a heartbeat.
func (m *membership) tried(err error) {
	link := "connected"
	if err != nil {
		link = "lost"
	}
	m.link.Store(&link)
}

// notify makes the registration write the node's state soon.
func (m *membership) notify() {
	if r := m.registrar.Load(); r != nil {
		r.Notify()
	}
}

// etcdState returns off, connecting, connected or lost. With several nodes, etcdState returns the
// worst of their states; connecting is worse than lost.
func (a *Agent) etcdState() string {
	if len(a.etcd.Endpoints) == 0 {
		return "off"
	}
	state := "connected"
	for _, n := range a.nodes {
		switch link := n.member.link.Load(); {
		case link == nil:
			return "connecting"
		case *link == "lost":
			state = "lost"
		}
	}
	return state
}
