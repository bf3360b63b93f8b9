package router

import (
	"github.com/cognitora/dataplane/internal/metric"
	wire "github.com/cognitora/dataplane/internal/peerevents"
)

// indexes of peerDefs.
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
	peersConnected: {Name: "cgn_router_kernel_events_connected", Help: "1 while an agent of this host tells of events of the kernel; absent, as the following, without router.kernel_events."},
	peersWatched:   {Name: "cgn_router_kernel_events_peers", Help: "Addresses of nodes of which it is asked to tell."},
	peersLeftOut:   {Name: "cgn_router_kernel_events_left_out", Help: "Of these, not told of because the table of 1,024 of the host is full."},
	peersEvents:    {Name: "cgn_router_kernel_events_total", Kind: metric.Counter, Labels: []string{"kind"}, Help: "Events that it has told, by kind: timeout (of a retransmission), recovered, reset, timed_out, refused, unanswered or closed. They are of connections of all of the host's processes to nodes."},
	peersLost:      {Name: "cgn_router_kernel_events_lost_total", Kind: metric.Counter, Labels: []string{"where"}, Help: "Events that were not: the kernel's ring was full (ring), this router did not read (agent), or had no time to look into them (router). The next look finds what they tell of. Of agent, since it was connected; of ring, since the programs were loaded and for all routers of the host."},
	peersBreaks:    {Name: "cgn_router_kernel_events_breaks_total", Kind: metric.Counter, Help: "Connections to the agent that ended, or could not be made, and were tried again."},
	peersMalformed: {Name: "cgn_router_kernel_events_malformed_total", Kind: metric.Counter, Help: "Of these, because of what came over them."},
}

func (r *Router) readPeers(emit func(def int, value float64, labels ...string)) {
	if r.peers == nil {
		return
	}
	s := r.peers.Stats()
	emit(peersConnected, number(s.Connected.Load()))
	emit(peersWatched, float64(s.Peers.Load()))
	emit(peersLeftOut, float64(s.LeftOut.Load()))
	for kind := wire.Timeout; kind < wire.Kinds; kind++ {
		emit(peersEvents, float64(s.Events[kind].Load()), kind.String())
	}
	emit(peersLost, float64(s.RingFull.Load()), "ring")
	emit(peersLost, float64(s.Slow.Load()), "agent")
	emit(peersLost, float64(r.fleet.Untold()), "router")
	emit(peersBreaks, float64(s.Breaks.Load()))
	emit(peersMalformed, float64(s.Malformed.Load()))
}
