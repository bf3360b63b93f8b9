package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/internal/cluster"
)

// membership is the node's place in the fleet: it announces the node in etcd
// and follows its cordon. The zero value of config means no etcd at all.
type membership struct {
	config       cluster.Config
	registration cluster.Registration
	nodeID       string
	log          *slog.Logger

	registrar atomic.Pointer[cluster.Registrar]
	cordon    atomic.Pointer[cluster.Cordon] // nil: not cordoned
	link      atomic.Pointer[string]         // what state says while etcd is used; nil: not known yet
}

// run keeps the node announced until ctx ends, then takes it out. It fails
// where another agent holds the node id.
func (m *membership) run(ctx context.Context) error {
	if len(m.config.Endpoints) == 0 {
		m.log.Info("no etcd endpoints: the node is not announced")
		return nil
	}
	client, err := cluster.Connect(ctx, m.config, m.log)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	if err != nil {
		return err
	}
	defer client.Close()
	r := cluster.NewRegistrar(client, m.registration)
	m.registrar.Store(r)

	watching, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { m.followCordon(watching, client) })
	return r.Run(ctx)
}

// notify has the node's state written soon.
func (m *membership) notify() {
	if r := m.registrar.Load(); r != nil {
		r.Notify()
	}
}

// state says off, connecting, connected or lost.
func (m *membership) state() string {
	if len(m.config.Endpoints) == 0 {
		return "off"
	}
	if link := m.link.Load(); link != nil {
		return *link
	}
	return "connecting"
}

// enter makes state say link, and reports whether it said something else.
func (m *membership) enter(link string) bool {
	old := m.link.Swap(&link)
	return old == nil || *old != link
}

// followCordon keeps cordon in step with etcd. It is for people to see: routers
// obey the key by themselves.
func (m *membership) followCordon(ctx context.Context, client *cluster.Client) {
	key := cluster.CordonKey(m.nodeID)
	put := func(e cluster.Entry) {
		if e.Key == key {
			m.setCordon(e.Value)
		}
	}
	_ = client.Watch(ctx, key, cluster.Handler{
		List: func(l cluster.Listing) {
			if m.enter("connected") {
				m.log.Info("etcd answers", "endpoints", m.config.Endpoints)
			}
			m.cordon.Store(nil)
			for _, e := range l.Entries {
				put(e)
			}
		},
		Put: put,
		Delete: func(deleted string) {
			if deleted == key {
				m.cordon.Store(nil)
				m.log.Info("node is no longer cordoned")
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
	m.cordon.Store(&c)
	m.log.Info("node is cordoned", "reason", c.Reason, "drain", c.Drain)
}
