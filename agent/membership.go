package agent

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
)

// membership is a node's place in the fleet: it announces the node in etcd and
// follows its cordon.
type membership struct {
	registration cluster.Registration
	nodeID       string
	log          *slog.Logger

	registrar atomic.Pointer[cluster.Registrar]
	cordon    atomic.Pointer[cluster.Cordon] // nil: the node is not cordoned
	link      atomic.Pointer[string]         // connected or lost; nil: not known yet
}

// run keeps the node announced until ctx ends, then removes it from etcd. run fails if another
// agent holds the node id.
func (m *membership) run(ctx context.Context, client *cluster.Client) error {
	r := cluster.NewRegistrar(client, m.registration)
	m.registrar.Store(r)

	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { m.followCordon(watching, client) })
	return r.Run(ctx)
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

// enter stores the state of the connection to etcd, and reports whether it has changed.
func (m *membership) enter(link string) bool {
	old := m.link.Swap(&link)
	return old == nil || *old != link
}

// cordonPing is how often the watch of the cordon pings etcd. Heartbeats matter more and ping by
// themselves.
const cordonPing = 5 * time.Second

// followCordon keeps cordon in step with etcd. The agent only displays the cordon; routers read the
// key themselves.
func (m *membership) followCordon(ctx context.Context, client *cluster.Client) {
	key := cluster.CordonKey(m.nodeID)
	put := func(e cluster.Entry) {
		if e.Key == key {
			m.setCordon(e.Value)
		}
	}
	_ = client.Watch(ctx, key, cluster.Handler{
		PingEvery: cordonPing,
		List: func(l cluster.Listing) {
			if m.enter("connected") {
				m.log.Info("etcd answers", "endpoints", client.Endpoints())
			}
			m.cordon.Store(nil)
			for _, e := range l.Entries {
				put(e)
			}
		},
		Put: put,
		Delete: func(deleted string) {
			if deleted == key {
				m.uncordon()
			}
		},
		Lost: func(err error) {
			m.enter("lost")
			m.log.Warn("etcd does not answer, serving on", "error", err)
		},
	})
}

func (m *membership) setCordon(value []byte) {
	c := cluster.ParseCordon(value)
	if c.Open {
		m.uncordon()
		return
	}
	m.cordon.Store(&c)
	m.log.Info("node is cordoned", "reason", c.Reason, "drain", c.Drain)
}

func (m *membership) uncordon() {
	if m.cordon.Swap(nil) != nil {
		m.log.Info("node is no longer cordoned")
	}
}
