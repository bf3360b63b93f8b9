package router

import (
	"github.com/cognitora/dataplane/internal/metric"
	wire "github.com/cognitora/dataplane/internal/peerevents"
)

// These are the indices of peerDefs.
const (
	peersConnected = iota
	peersWatched
	peersLeftOut
	peersEvents
	peersLost
	peersBreaks
	peersMalformed
)

var peerDefs = []metric.Def{
	peersConnected: {
		Name: "cgn_router_kernel_events_connected",
		Help: "1 while this host's agent tells the router of kernel events; without router.kernel_events all " +
			"cgn_router_kernel_events metrics are absent.",
	},
	peersWatched: {Name: "cgn_router_kernel_events_peers", Help: "Addresses of nodes for which the router asks the agent for kernel events."},
	peersLeftOut: {
		Name: "cgn_router_kernel_events_left_out",
		Help: "Addresses of nodes without kernel events because the host's table of 1,024 is full.",
	},
	peersEvents: {
		Name: "cgn_router_kernel_events_total", Kind: metric.Counter, Labels: []string{"kind"},
		Help: "Kernel events of connections to nodes, of all of the host's processes, by kind: timeout (of a " +
			"retransmission), recovered, reset, timed_out, refused, unanswered or closed.",
	},
	peersLost: {
		Name: "cgn_router_kernel_events_lost_total", Kind: metric.Counter, Labels: []string{"where"},
		Help: "Kernel events that did not reach the router: the kernel's ring was full (ring), this router did not " +
			"read (agent), or had no time to look into them (router). The next look finds their cause. ring counts " +
			"for all routers of the host since the programs were loaded, agent since the connection began.",
	},
	peersBreaks: {
		Name: "cgn_router_kernel_events_breaks_total", Kind: metric.Counter,
		Help: "Connections to the agent's event socket that ended, or could not be made, and were tried again.",
	},
	peersMalformed: {
		Name: "cgn_router_kernel_events_malformed_total", Kind: metric.Counter,
		Help: "Connections to the agent's event socket that ended because of a message that the router could not read.",
	},
}

func (k *knowledge) readPeers(emit func(def int, value float64, labels ...string)) {
	if k.peers == nil {
		return
	}
	s := k.peers.Stats()
	emit(peersConnected, metric.Bool(s.Connected.Load()))
	emit(peersWatched, float64(s.Peers.Load()))
	emit(peersLeftOut, float64(s.LeftOut.Load()))
	for kind := wire.Timeout; kind < wire.Kinds; kind++ {
		emit(peersEvents, float64(s.Events[kind].Load()), kind.String())
	}
	emit(peersLost, float64(s.RingFull.Load()), "ring")
	emit(peersLost, float64(s.Slow.Load()), "agent")
	emit(peersLost, float64(k.fleet.Untold()), "router")
	emit(peersBreaks, float64(s.Breaks.Load()))
	emit(peersMalformed, float64(s.Malformed.Load()))
}
