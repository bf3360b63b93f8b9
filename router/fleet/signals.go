package fleet

import (
	"context"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/signals"
)

// followSignals has the agent's stream followed where it says that there is one. It is called by the fleet's goroutine only.
func (f *Fleet) followSignals(m *member, h *cluster.NodeHealth) {
	if m.signalsAt == h.PushAddress || f.ctx == nil {
		return
	}
	m.stopSignals()
	m.signalsAt = h.PushAddress
	if h.PushAddress == "" {
		return
	}
	ctx, cancel := context.WithCancel(f.ctx)
	m.signals = cancel
	n := m.node
	o := signals.Options{
		NodeID: n.ID, Address: h.PushAddress, Stats: &f.signals, Log: f.opts.Log,
		Got: func(r signals.Reading) { n.take(&r) }, Lost: func() { n.take(nil) },
	}
	if strings.HasPrefix(h.Address, "https://") {
		o.TLS = f.agentTLS()
	}
	f.wg.Go(func() {
		signals.Follow(ctx, o)
		n.take(nil)
	})
}

func (m *member) stopSignals() {
	if m.signals != nil {
		m.signals()
		m.signals = nil
	}
}

// Signals counts what the agents' streams have done.
func (f *Fleet) Signals() *signals.Stats { return &f.signals }

// sweepLoads forgets telemetry that has become too old, whether etcd answers or not.
func (f *Fleet) sweepLoads(now time.Time) {
	for _, m := range f.members {
		if m.node.Source == Etcd {
			m.node.age(now)
		}
	}
}
