package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/cognitora/dataplane/agent/peerevents"
	"github.com/cognitora/dataplane/agent/telemetry"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/metric"
)

// peers tells routers of this host about events in the kernel.
type peers struct {
	at     *net.UnixListener // nil: events are not served
	server *peerevents.Server
	opened chan struct{} // closed once the programs, or their replacement, are open

	mu     sync.Mutex
	loaded bool              // true if the programs are loaded
	source peerevents.Source // the server's present or last source; nil: none was opened yet
}

// await returns a function that calls open, and then notes that the programs, or their replacement,
// are loaded. A second call means that the first programs are gone, so that the server opens its
// source anew.
func (p *peers) await(open func() (telemetry.Source, error)) func() (telemetry.Source, error) {
	p.opened = make(chan struct{})
	if open == nil {
		return nil
	}
	first := sync.OnceFunc(func() { close(p.opened) })
	return func() (telemetry.Source, error) {
		s, err := open()
		if err != nil {
			return s, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.loaded = s.Kernel.Source() == bpf.SourceBPF
		if p.source != nil {
			p.source.Interrupt()
		}
		first()
		return s, err
	}
}

// open opens the server's source.
func (p *peers) open(t *TelemetryConfig) (peerevents.Source, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.loaded {
		return nil, errors.New("no programs in the kernel tell of events; /readyz of the agent says why")
	}
	s, err := t.openEvents()
	if err == nil {
		p.source = s
	}
	return s, err
}

func (a *Agent) preparePeers() (err error) {
	t := &a.config.Telemetry
	if t.Events == "" {
		return nil
	}
	o := peerevents.Options{Logger: a.log, Open: func() (peerevents.Source, error) { return a.peers.open(t) }}
	if o.Layout, err = layout(); err != nil {
		return err
	}
	if a.peers.at, err = peerevents.Open(t.Events, t.Group); err != nil {
		return fmt.Errorf("telemetry.events, telemetry.events_group: %w", err)
	}
	a.peers.server = peerevents.New(o)
	return nil
}

// tellPeers serves events until ctx ends. tellPeers starts once the programs are loaded, or cannot
// be loaded.
func (a *Agent) tellPeers(ctx context.Context) {
	if a.peers.at == nil {
		return
	}
	select {
	case <-a.peers.opened:
	case <-ctx.Done():
	}
	a.peers.server.Serve(ctx, a.peers.at)
}

// Indexes of peerDefs.
const (
	peersRouters = iota
	peersWatched
	peersLeftOut
	peersSent
	peersLost
	peersRefused
)

var peerDefs = []metric.Def{
	peersRouters: {Name: "cgn_agent_peer_events_routers", Help: "Routers of this host that the agent tells of kernel events; without telemetry.events all cgn_agent_peer_events metrics are absent."},
	peersWatched: {Name: "cgn_agent_peer_events_peers", Help: "Nodes of this host's routers whose kernel events the agent passes on."},
	peersLeftOut: {Name: "cgn_agent_peer_events_left_out", Help: "Nodes of this host's routers without kernel events because the table of 1,024 is full."},
	peersSent:    {Name: "cgn_agent_peer_events_sent_total", Kind: metric.Counter, Help: "Kernel events that the agent has told routers of."},
	peersLost:    {Name: "cgn_agent_peer_events_lost_total", Kind: metric.Counter, Labels: []string{"why"}, Help: "Kernel events that no router was told of: the kernel's ring was full (ring), a router does not read (slow), or nobody has read the ring for 1 s (stale)."},
	peersRefused: {Name: "cgn_agent_peer_events_refused_total", Kind: metric.Counter, Help: "Connections to telemetry.events that the agent refused: a wrong user or version, 8 routers connected already, or no kernel events to tell."},
}

func (p *peers) emit(emit func(def int, value float64, labels ...string)) {
	if p.server == nil {
		return
	}
	s := p.server.Stats()
	emitAll(emit, peersRouters, []float64{float64(s.Routers), float64(s.Watched), float64(s.LeftOut), float64(s.Sent)})
	emit(peersLost, float64(s.RingFull), "ring")
	emit(peersLost, float64(s.Lost), "slow")
	emit(peersLost, float64(s.Stale), "stale")
	emit(peersRefused, float64(s.Refused))
}
