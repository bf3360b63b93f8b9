package fleet

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/signals"
)

// streamAt is the address of an agent's stream of load.
type streamAt struct {
	address string
	tls     bool
}

// agentSignals receives the load of all nodes of one agent.
type agentSignals struct {
	cancel context.CancelFunc

	mu    sync.Mutex
	nodes map[string]*Node // by id: the nodes whose heartbeats name the agent's stream
}

// got hands each node its reading. A node without a reading falls back to its heartbeats.
func (s *agentSignals) got(told []load.Reading) (any bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.nodes {
		i := slices.IndexFunc(told, func(r load.Reading) bool { return r.Node == id })
		if i < 0 {
			n.take(nil)
			continue
		}
		n.take(&told[i].Load)
		any = true
	}
	return any || len(s.nodes) == 0
}

func (s *agentSignals) lost() {
	s.got(nil)
}

// followSignals starts to follow the agent's stream if the heartbeat names one. All nodes of an
// agent share its stream. Only the fleet's goroutine calls followSignals.
func (f *Fleet) followSignals(m *member, h *cluster.NodeHealth) {
	at := streamAt{h.PushAddress, strings.HasPrefix(h.Address, "https://")}
	if m.signalsAt == at || f.ctx == nil {
		return
	}
	f.leaveSignals(m)
	if at.address == "" {
		return
	}
	m.signalsAt = at
	s := f.streams[at]
	if s == nil {
		s = f.openStream(at)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[m.node.ID] = m.node
}

func (f *Fleet) openStream(at streamAt) *agentSignals {
	ctx, cancel := context.WithCancel(f.ctx)
	s := &agentSignals{cancel: cancel, nodes: map[string]*Node{}}
	f.streams[at] = s
	o := signals.Options{Address: at.address, Stats: &f.signals, Logger: f.o.Logger, Got: s.got, Lost: s.lost}
	if at.tls {
		o.TLS = f.agentTLS()
	}
	f.wg.Go(func() {
		signals.Follow(ctx, o)
		s.lost()
	})
	return s
}

// leaveSignals takes the node off its agent's stream. The stream ends with the agent's last node.
func (f *Fleet) leaveSignals(m *member) {
	s := f.streams[m.signalsAt]
	if s == nil {
		return
	}
	s.mu.Lock()
	delete(s.nodes, m.node.ID)
	left := len(s.nodes)
	s.mu.Unlock()
	m.node.take(nil)
	if left == 0 {
		s.cancel()
		delete(f.streams, m.signalsAt)
	}
	m.signalsAt = streamAt{}
}

// Signals returns the counts of the agents' streams.
func (f *Fleet) Signals() *signals.Stats { return &f.signals }

// sweepLoads forgets telemetry that is too old. sweepLoads works during an outage of etcd as well.
func (f *Fleet) sweepLoads(now time.Time) {
	for _, m := range f.members {
		m.node.age(now)
	}
}
