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

// streamAt is where an agent tells of its nodes.
type streamAt struct {
	address string
	tls     bool
}

// agentSignals receives what one agent tells of all its nodes.
type agentSignals struct {
	cancel context.CancelFunc

	mu    sync.Mutex
	nodes map[string]*Node // that have named it, by id
}

// got hands each node its reading. A node without one falls back to its heartbeats.
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
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.nodes {
		n.take(nil)
	}
}

// followSignals has the agent's stream followed where the node says that there is one: one for all
// nodes of the agent. It is called by the fleet's goroutine only.
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
	o := signals.Options{Address: at.address, Stats: &f.signals, Logger: f.opts.Logger, Got: s.got, Lost: s.lost}
	if at.tls {
		o.TLS = f.agentTLS()
	}
	f.wg.Go(func() {
		signals.Follow(ctx, o)
		s.lost()
	})
	return s
}

// leaveSignals takes the node off its agent's stream, which ends with the last one.
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

// Signals counts the work of the agents' streams.
func (f *Fleet) Signals() *signals.Stats { return &f.signals }

// sweepLoads forgets telemetry that has become too old, whether etcd answers or not.
func (f *Fleet) sweepLoads(now time.Time) {
	for _, m := range f.members {
		m.node.age(now)
	}
}
